// Package logrole runs the log role, which serves the output of a node's containers to
// the follow role. It opens each log file as soon as it appears: the kubelet deletes all
// but two files of a container, and an open file can be read after its deletion. Deciding
// which parts of a log were read or lost belongs to package containerlog.
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

// Arg is the first argument of berth-sandbox for the log role. Three paths follow it, which
// main passes to Main.
const Arg = "log-role"

// SpoolEnv names the environment variable for Watcher.Spool, so that a test can reduce it.
const SpoolEnv = "BERTH_LOG_SPOOL"

// notifyFD is the file descriptor for the events of the role.
const notifyFD = 3

// Main runs the role, and returns the exit status. dir is the directory of the logs, unwritten
// that of the counts of output that was not written, and socket the path to listen on.
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
	_ = os.Remove(socket) // a previous process of the role may have left it
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
