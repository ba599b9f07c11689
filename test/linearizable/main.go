// Command linearizable tries whether the API of a cluster with several control planes is
// linearizable: a write that was acknowledged is seen by every later read, also while heads
// are killed, stopped or cut off. The script run in this folder makes the faults.
//
//	linearizable write FOLDER    writes and reads ConfigMaps from a pod until FOLDER/stop exists
//	linearizable check FOLDER    judges what the clients stored in FOLDER
//
// Read history.go first, then client.go and check.go.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "linearizable:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "write" {
		return write(args[1])
	}
	if len(args) == 2 && args[0] == "check" {
		return check(args[1])
	}
	return errors.New("usage: linearizable write|check FOLDER")
}
