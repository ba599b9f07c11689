// Package logrole is the role that serves the output of a node's containers to the
// process that passes the workload's output on. It opens each log as soon as it appears:
// the kubelet deletes all but two files of a container, and the role keeps deleted files
// until they were read. Which parts of a log were read or lost belongs to package
// containerlog.
package logrole

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/node/sandbox"
)

// Arg starts the role. The directories of the logs and of the counts of unwritten output,
// and the socket, follow it. main passes them to Main.
const Arg = "log-role"

// SpoolEnv sets Watcher.Spool, so that a test can make it small.
const SpoolEnv = "BERTH_LOG_SPOOL"

// notifyFD is the descriptor for the role's events.
const notifyFD = 3

// Main runs the role, and returns the exit status.
func Main(dir, unwritten, socket string) int {
	sandbox.OutliveSignals()
	notifier := notify.New(notifyFD)
	if err := serve(dir, unwritten, socket, notifier); err != nil {
		notifier.Fatal(err)
		fmt.Fprintln(os.Stderr, "logs:", err)
		return 1
	}
	return 0
}

func serve(dir, unwritten, socket string, notifier *notify.Notifier) error {
	watcher, err := containerlog.NewWatcher(dir, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	watcher.Unwritten = unwritten
	if spool, err := strconv.ParseInt(os.Getenv(SpoolEnv), 10, 64); err == nil {
		watcher.Spool = spool
	}
	_ = os.Remove(socket) // of an earlier life of the role
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	group, ctx := errgroup.WithContext(context.Background()) // this process ends with the sandbox
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return watcher.Serve(ctx, listener) })
	notifier.Ready()
	group.Go(func() error { notifier.Alive(ctx, nil); return nil })
	return group.Wait()
}
