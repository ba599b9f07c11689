// Command berth-sandbox has the processes of a node that wait most of the time: janitor,
// init, the log role, and the process that reports a panic of berth run. It links little,
// so that each of them needs less than a fifth of the memory that it would need as a
// part of the program berth.
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
	fmt.Fprintln(os.Stderr, "berth-sandbox: berth starts this program, nobody else has to")
	os.Exit(2)
}
