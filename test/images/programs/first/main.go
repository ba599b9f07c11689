// Command first reports when a container's first instruction was: in a file, and
// then it stays, or, without one, on standard output.
//
//	first [FILE]
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	now := time.Now()
	text := fmt.Sprintf("%d.%09d\n", now.Unix(), now.Nanosecond())
	if len(os.Args) < 2 {
		fmt.Print(text)
		return
	}
	part := os.Args[1] + ".part"
	err := os.WriteFile(part, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(part, os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "first:", err)
		os.Exit(1)
	}
	for {
		time.Sleep(time.Hour)
	}
}
