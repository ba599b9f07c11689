package control

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"berth.dev/berth/internal/base/heap"
	"berth.dev/berth/internal/base/notify"
)

// readyPoll is the time between two requests for /readyz during the start.
const readyPoll = 5 * time.Millisecond

// runOwn runs berth's own tasks once kube-apiserver admits writes: it reports readiness
// and heartbeats, and runs the load-balancer controller.
func (r *role) runOwn(ctx context.Context) error {
	select {
	case <-r.writable:
	case <-ctx.Done():
		return nil
	}
	client, err := kubernetes.NewForConfig(r.loopback.config(managedBy))
	if err != nil {
		return fmt.Errorf("make the role's client: %w", err)
	}
	own, ctx := errgroup.WithContext(ctx)
	if !r.plan.Replicated() {
		own.Go(func() error { return runLoadBalancer(ctx, client, r.plan, utilfeature.DefaultFeatureGate) })
	}
	own.Go(func() error {
		if err := waitReady(ctx, client); err != nil {
			return unlessStopped(ctx, err)
		}
		if err := r.publish(ctx); err != nil {
			return unlessStopped(ctx, err)
		}
		r.opts.Notifier.Ready()
		r.opts.Log.Info("the control plane is ready", "after", time.Since(r.began).Round(time.Millisecond))
		own.Go(func() error { heap.Settle(ctx, settleTime); return nil })
		own.Go(func() error { return unlessStopped(ctx, listMetrics(ctx, r.loopback.config(managedBy))) })
		r.opts.Notifier.Alive(ctx, func(ctx context.Context) error { return probe(ctx, client, r.alivePath()) })
		return nil
	})
	return own.Wait()
}

// alivePath returns the path of the health check that detects a hanging server.
// A store without a majority is no reason to replace this member.
func (r *role) alivePath() string {
	if r.plan.Replicated() {
		return "/livez/ping"
	}
	return "/livez"
}

// unlessStopped returns nil if the work failed because the role is stopping.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// waitReady returns nil when kube-apiserver is ready. When ctx ends, it returns an error
// with the cause of ctx and the last error of the server.
func waitReady(ctx context.Context, client kubernetes.Interface) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := probe(ctx, client, "/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for kube-apiserver: %w (last: %w)", context.Cause(ctx), err)
		}
	}
}

// probe requests a health check of kube-apiserver, such as /readyz, and returns an error
// unless it succeeds.
func probe(ctx context.Context, client kubernetes.Interface, path string) error {
	return client.Discovery().RESTClient().Get().AbsPath(path).MaxRetries(0).Do(ctx).Error()
}

// logProblems makes the components log only errors. Their logger is a package
// variable, and so is its action after a fatal error: it ends the process, because
// some components have no other way to give up.
func logProblems(ctx context.Context, role string, notifier *notify.Notifier) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	set := func(name, value string) { _ = flags.Set(name, value) } // the names are klog's
	set("logtostderr", "false")
	// kube-apiserver warns of each API version that it does not have.
	set("stderrthreshold", "ERROR")
	klog.SetOutput(io.Discard)
	var watcher endWatcher
	klog.SetOutputBySeverity("ERROR", &watcher)
	klog.OsExit = func(code int) {
		if ctx.Err() != nil {
			os.Exit(0) // a hook that was interrupted because the role should stop
		}
		if watcher.lost.Load() {
			notifier.Yield(errLostLease)
		} else {
			notifier.Fatal(watcher.endOf(role))
		}
		os.Exit(code)
	}
}

// endWatcher searches the error messages of the components for the reason why one of them
// ends the process. These components do not report the reason in another way.
type endWatcher struct {
	// lost is set after the last message of a component that has lost its lease.
	lost atomic.Bool
	// fatal is the last fatal error.
	fatal atomic.Pointer[string]
}

func (w *endWatcher) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("eaderelection lost")) {
		w.lost.Store(true)
	}
	// klog's header begins with the severity and ends with the place in the source.
	if _, text, ok := bytes.Cut(line, []byte("] ")); ok && line[0] == 'F' {
		first, _, _ := strings.Cut(string(text), "\n")
		w.fatal.Store(&first)
	}
	return len(line), nil
}

// errLostLease is the reason why controllers end that have lost their lease. They are started
// again as often as that happens, because it is the API server that is slow.
var errLostLease = fmt.Errorf("their lease was not renewed for %s, and the controllers of another node may take over", renewDeadline)

// endOf returns the reason why a component ended the role.
func (w *endWatcher) endOf(role string) error {
	if fatal := w.fatal.Load(); fatal != nil {
		return errors.New(*fatal)
	}
	return fmt.Errorf("a component ended the %s role; see the end of its log", role)
}
