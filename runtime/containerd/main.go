// Command containerd is containerd v2 with only the plugins that a berth node
// uses: CRI and what it stands on. Everything left out would cost time at
// every start and memory for as long as the node lives.
//
// run.go starts the daemon, and plugins.go lists its plugins. Each of the other files has
// a plugin of berth, or wraps a plugin of containerd.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "containerd: %v\n", err)
		os.Exit(1)
	}
}
