package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
)

// Phases that the role reports before it is ready.
const (
	phaseEtcd    = "etcd"    // the store answers and holds the first objects
	phaseServing = "serving" // kube-apiserver accepts requests
	phaseAccess  = "access"  // kube-apiserver also admits users who are not administrators
)

// settleTime is the delay after the start before memory is given back. The first
// pods run by then.
const settleTime = 5 * time.Second

// clientGrace limits how long the controllers may take to stop. Controllers that do
// not wait for their context are left behind.
const clientGrace = 100 * time.Millisecond

// Options holds what the role needs besides the plan.
type Options struct {
	// Listeners are served by kube-apiserver, at least one, all with the same
	// certificate. The first one's port is the API's inside the cluster.
	Listeners []net.Listener
	// State is the listener for the supervisor's requests for objects that outlive
	// the cluster; nil if none are kept.
	State net.Listener
	// Notifier reports phases, readiness and heartbeats. It may be nil.
	Notifier *notify.Notifier
	// Log is for the role itself; the components write to stderr. It may be
	// nil.
	Log *slog.Logger
}

// run runs the control plane that plan describes until ctx ends, and returns
// nil then. It returns early with the first error of a component. A process
// can call it once, and should exit afterwards: not all goroutines of the
// components can be stopped.
func run(ctx context.Context, plan cluster.Plan, opts Options) error {
	if len(opts.Listeners) == 0 {
		return errors.New("run the control role: no listener; pass one with --listener-fd")
	}
	began := time.Now()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	logProblems(ctx, "control", opts.Notifier)
	// Warnings are meant for people at a command line.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	store := startStore(plan)
	defer store.close()
	serveStorageFrom(store)
	// Do not close the listener at the end: a kube-apiserver that is interrupted during
	// its start panics when its listener is closed.
	listener := mergeListeners(opts.Listeners)

	r := &role{began: began, plan: plan, opts: opts, store: store, serving: make(chan struct{}), writable: make(chan struct{})}
	if err := r.configure(ctx, listener); err != nil {
		return err
	}
	if opts.State != nil {
		defer opts.State.Close()
		go r.serveState(ctx, opts.State)
	}
	return r.run(ctx)
}

// role is a control plane that starts or runs.
type role struct {
	began     time.Time
	plan      cluster.Plan
	opts      Options
	store     *store
	loopback  *loopback
	api       *apioptions.ServerRunOptions
	manager   *managerconfig.Config
	scheduler *scheduleroptions.Options
	publish   func(context.Context) error // publishAPI's, once writable
	serving   chan struct{}               // closed when kube-apiserver accepts requests
	writable  chan struct{}               // closed when kube-apiserver admits writes without delay
}

// configure parses the options of all components, one after the other, because
// they share feature gates and registries.
func (r *role) configure(ctx context.Context, listener net.Listener) error {
	var err error
	if r.loopback, err = newLoopback(listener.Addr()); err != nil {
		return err
	}
	if r.api, err = parseAPIServerOptions(r.plan, listener); err != nil {
		return err
	}
	if r.plan.Replicated() {
		return nil // the controllers have their own role
	}
	if r.scheduler, err = parseSchedulerOptions(r.plan); err != nil {
		return err
	}
	r.manager, err = parseManagerOptions(ctx, r.plan, r.serving)
	return err
}

// run runs the components. When ctx ends, the clients of the API server stop first, so
// that they can still write their last state. The caller closes the store last.
func (r *role) run(ctx context.Context) error {
	serverCtx, stopServer := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServer()
	clientCtx, stopClients := context.WithCancelCause(ctx)
	defer stopClients(nil)

	serverEnded := make(chan error, 1)
	go func() {
		err := r.runServer(serverCtx)
		stopClients(err)
		serverEnded <- err
	}()
	clients, clientCtx := errgroup.WithContext(clientCtx)
	if !r.plan.Replicated() {
		clients.Go(func() error { return runManager(clientCtx, r.manager) })
		clients.Go(func() error { return runScheduler(clientCtx, r.scheduler) })
	}
	clients.Go(func() error { return r.runOwn(clientCtx) })

	clientsEnded := make(chan error, 1)
	go func() { clientsEnded <- clients.Wait() }()

	<-clientCtx.Done()
	var clientErr error
	select {
	case clientErr = <-clientsEnded:
	case <-time.After(clientGrace):
	}
	if ctx.Err() != nil && !r.started() {
		// No client has a request in flight. Upstream's start hooks wait for each other
		// for seconds when they are interrupted, so do not wait for them.
		return nil
	}
	stopServer()
	serverErr := <-serverEnded
	switch {
	case ctx.Err() != nil:
		return nil
	case serverErr != nil:
		return serverErr
	case clientErr != nil:
		return clientErr
	}
	return fmt.Errorf("run the control role: %w", context.Cause(clientCtx))
}

// started reports whether kube-apiserver has started completely.
func (r *role) started() bool {
	select {
	case <-r.writable:
		return true
	default:
		return false
	}
}

// runServer fills the store and runs kube-apiserver until ctx ends.
func (r *role) runServer(ctx context.Context) error {
	type seeding struct {
		fresh bool
		err   error
	}
	seeded := make(chan seeding, 1)
	go func() {
		fresh, err := seedStore(ctx, r.store, r.plan, r.opts.Notifier.Notice)
		if err == nil {
			r.opts.Notifier.Phase(phaseEtcd)
		}
		seeded <- seeding{fresh, err}
	}()
	server, err := newAPIServer(ctx, r.api, r.loopback, r.plan.Replicated(),
		func() (bool, error) { s := <-seeded; return s.fresh, s.err },
		func() {
			r.opts.Notifier.Phase(phaseServing)
			close(r.serving)
		},
		func() {
			r.opts.Notifier.Phase(phaseAccess)
			close(r.writable)
		})
	if err != nil {
		return err
	}
	r.publish = server.publish
	err = server.run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return ended("kube-apiserver", err)
}
