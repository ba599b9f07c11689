package launch

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/node/sandbox"
)

// LogArg starts this program again as the role that serves the output of
// containers. The directories of the logs and of the counts of unwritten output,
// and the socket, follow it. main passes them to LogRole.
const LogArg = "log-role"

const (
	// logNotifyFD is the descriptor for the role's events.
	logNotifyFD = 3
	// logSpoolEnv sets Watcher.Spool, so that a test can make it small.
	logSpoolEnv = "BERTH_LOG_SPOOL"
)

// logRole returns the role that serves the logs of this node's containers to the process
// that passes the workload's output on. The role opens each log as soon as it appears. The
// kubelet forwards requests to the role. Without the role, the API server serves the logs,
// as for kubectl. The kubelet deletes all but two files of a container. The role keeps
// deleted files until they were read.
func logRole(plan cluster.Plan, box *sandbox.Sandbox, getenv func(string) string) *supervisor.Role {
	return supervisor.InSandbox(box, &supervisor.Role{
		Name: "logs", Path: "/proc/self/exe", Optional: true,
		Args: []string{LogArg, plan.Paths.PodLogs(), plan.Paths.Unwritten(), plan.Paths.LogSocket()},
		Env:  []string{logSpoolEnv + "=" + getenv(logSpoolEnv)},
	})
}

// LogRole runs the role, and returns the exit status.
func LogRole(dir, unwritten, socket string) int {
	sandbox.OutliveSignals()
	notifier := notify.New(logNotifyFD)
	if err := serveLogs(dir, unwritten, socket, notifier); err != nil {
		notifier.Fatal(err)
		fmt.Fprintln(os.Stderr, "logs:", err)
		return 1
	}
	return 0
}

func serveLogs(dir, unwritten, socket string, notifier *notify.Notifier) error {
	watcher, err := containerlog.NewWatcher(dir, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	watcher.Unwritten = unwritten
	if spool, err := strconv.ParseInt(os.Getenv(logSpoolEnv), 10, 64); err == nil {
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
