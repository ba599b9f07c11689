// Command hello prints a greeting, its arguments and its environment, and ends
// with the status in HELLO_EXIT.
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

func main() {
	host, _ := os.Hostname() // a greeting without a name is still one
	fmt.Printf("hello from %s, uid %d, gid %d, pid %d\n", host, os.Getuid(), os.Getgid(), os.Getpid())
	if len(os.Args) > 1 {
		fmt.Println("arguments:", strings.Join(os.Args[1:], " "))
	}
	env := os.Environ()
	slices.Sort(env)
	for _, e := range env {
		fmt.Println(e)
	}
	status, _ := strconv.Atoi(os.Getenv("HELLO_EXIT")) // absent means 0
	os.Exit(status)
}
