// Command containerd-shim-berth-v2 holds the containers of one pod. It is
// containerd's shim for runc with the task service of package task. It has to
// be a program of its own: it starts itself again by its path, and every
// megabyte of it is there once per pod.
package main

import (
	"context"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/plugin/registry"
)

func main() {
	registry.Register(taskPlugin())
	shim.RunShim(context.Background(), lifecycle{manager.NewShimManager("io.containerd.berth.v2")})
}
