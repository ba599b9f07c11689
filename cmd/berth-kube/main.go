// Command berth-kube runs the roles of a cluster that are parts of Kubernetes:
// control (etcd, API server, controller manager, scheduler), controllers (the
// latter two where there are several control planes) and node (kubelet,
// kube-proxy, volumes). Under the name kubectl it is kubectl, which shares most of
// its code.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"berth.dev/berth/internal/access/kubectl"
	"berth.dev/berth/internal/base/heap"
	_ "berth.dev/berth/internal/base/heap/startup"
	"berth.dev/berth/internal/kube/control"
	"berth.dev/berth/internal/kube/node"
)

func main() {
	if kubectl.Started() {
		heap.Rest()
		kubectl.Main()
		return
	}
	roles := map[string]func(context.Context, []string) error{"control": control.Main, "controllers": control.ControllersMain, "node": node.Main}
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: berth-kube control|controllers|node --plan FILE; berth starts it, nobody else has to")
		os.Exit(2)
	}
	// Slurm may signal all processes of a job at once (scancel, time limit), but only the
	// supervisor decides when a role ends, and kills it. So a role stops in order only at
	// SIGPWR, which Slurm never sends.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGPWR)
	defer stop()
	if err := roles[os.Args[1]](ctx, os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "berth-kube %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
