// Command berth-sandbox runs the processes of a node that wait most of the time: the
// janitor, init, the log role, and the process that reports a panic of berth run. It links
// few packages, so each process needs less than a fifth of its memory in the program berth.
package main

import (
	"fmt"
	"os"

	"berth.dev/berth/internal/launch/crash"
	"berth.dev/berth/internal/launch/logrole"
	"berth.dev/berth/internal/node/sandbox"
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == logrole.Arg {
		os.Exit(logrole.Main(os.Args[2], os.Args[3], os.Args[4]))
	}
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case sandbox.JanitorArg:
			os.Exit(sandbox.Janitor())
		case sandbox.InitArg:
			os.Exit(sandbox.Init())
		case crash.Arg:
			os.Exit(crash.Main())
		}
	}
	fmt.Fprintln(os.Stderr, "berth-sandbox: only berth starts this program; run berth instead")
	os.Exit(2)
}
