// Command berth-layers serves image layers to the kernel. It runs outside the namespaces of
// its mounts, so that it cannot access its own mounts and wait for itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/linux"
	"berth.dev/berth/runtime/internal/mounts"
	"berth.dev/berth/runtime/internal/notify"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "layers: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	notifyFD := flag.Int("notify-fd", -1, "descriptor that gets one JSON event per line")
	requestsFD := flag.Int("requests-fd", -1, "socket for requests of mounts")
	holderFD := flag.Int("holder-fd", -1, "socket to the process that holds descriptors")
	var refused []netip.Prefix
	flag.Func("refuse", "range of addresses where no registry is contacted; can be repeated", func(text string) error {
		prefix, err := netip.ParsePrefix(text)
		refused = append(refused, prefix)
		return err
	})
	var most budget.Budget
	flag.Func("image-budget", "`number` that multiplies the limits on images", most.Set)
	flag.Parse()
	// Signals may be sent to all processes of a job at once. This process is
	// needed until the last user of its mounts has ended.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	requests, err := mounts.Conn(*requestsFD)
	if err != nil {
		return err
	}
	defer requests.Close()
	holder, err := mounts.Conn(*holderFD)
	if err != nil {
		return err
	}
	defer holder.Close()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		// The supervisor is the only reader.
		linux.WaitForClose(*notifyFD)
		cancel(errors.New("the supervisor is gone"))
	}()
	notifier := notify.New(*notifyFD)
	server := mounts.NewServer(requests, holder, slog.New(slog.NewTextHandler(os.Stderr, nil)), notifier.Notice)
	server.Refused, server.Budget = refused, most
	if err := server.Resume(); err != nil {
		return err
	}
	notifier.Ready()
	go notifier.Alive(ctx, nil)
	return server.Run(ctx)
}
