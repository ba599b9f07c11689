// Command berth-bench measures ways of running containers; see
// docs/design/0017-bench.md. 'berth bench' starts it.
package main

import (
	"os"

	"berth.dev/berth/bench/internal/command"
	"berth.dev/berth/bench/internal/step"
)

func main() {
	if code, is := step.Main(os.Args[1:]); is {
		os.Exit(code)
	}
	os.Exit(command.Main(os.Args[1:]))
}
