// Command containerd-shim-berth-v2 holds the containers of one pod. It is
// containerd's shim for runc with the task service of package task. It must be a
// separate program: it starts itself again by its path, and each pod has a copy,
// so every megabyte counts.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	calls := lifecycle{manager.NewShimManager("io.containerd.berth.v2")}
	if o, ok := readServerOptions(os.Args[1:]); ok {
		if err := serve(context.Background(), o); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", calls.Name(), err)
			os.Exit(1)
		}
		return
	}
	// Actions that end by themselves: start, delete, -info.
	shim.RunShim(context.Background(), calls)
}
