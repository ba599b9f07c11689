// Command berth-images brings image archives into a running containerd.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: berth-images import --socket PATH [--namespace k8s.io] [--snapshotter overlayfs]
                           [--hosts DIR --mirror ADDRESS] [NAME=]FILE...

Imports archives (docker save, podman save, OCI layout; plain, gzip or zstd)
and prints one line of JSON per image. With --hosts and --mirror, containerd asks
the mirror before the registries that the images are named after.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) < 2 || os.Args[1] != "import" {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err := importArchives(ctx, os.Args[2:], os.Stdout); err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintf(os.Stderr, "berth-images: %v\n", err)
		}
		os.Exit(1)
	}
}
