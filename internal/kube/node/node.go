package node

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/heap"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/network/fastpath"
	"berth.dev/berth/internal/network/servicemap"
)

// Phases that the role reports while it starts.
const (
	phaseRuntime    = "runtime"    // containerd answers requests
	phaseRegistered = "registered" // the Node exists
	phaseProxy      = "proxy"      // Services work
	phaseKubelet    = "kubelet"    // the Node is Ready
)

// Options holds what a run needs besides the plan.
type Options struct {
	Notifier *notify.Notifier
	Log      *slog.Logger
	// FastPath and ServiceMap are connections to the net role, which serves the fast
	// path. They are nil if the node has no fast path.
	FastPath   *net.UnixConn
	ServiceMap *servicemap.Conn
}

// openFastPath sets FastPath and ServiceMap to inherited sockets. It does nothing if one of
// the descriptors is negative.
func (o *Options) openFastPath(asked, line int) (err error) {
	if asked < 0 || line < 0 {
		return nil
	}
	for _, fd := range []int{asked, line} {
		syscall.CloseOnExec(fd)
	}
	file := os.NewFile(uintptr(asked), "fast-path")
	defer file.Close()
	if o.FastPath, err = linux.PacketConn(file); err != nil {
		return err
	}
	o.ServiceMap, err = servicemap.NewConn(os.NewFile(uintptr(line), "service-map"))
	return err
}

// Main runs the role as a program: it parses args, reads the plan and returns
// when ctx ends or the role fails.
func Main(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	planPath := flags.String("plan", "/run/berth/plan.json", "`file` that describes the cluster")
	notifyFD := flags.Int("notify-fd", -1, "`descriptor` for events")
	fastPathFD := flags.Int("fast-path-fd", -1, "`descriptor` where the fast path asks about pods")
	serviceMapFD := flags.Int("service-map-fd", -1, "`descriptor` where the fast path receives Services and policies")
	if err := flags.Parse(args); err != nil {
		return err
	}
	notifier := notify.New(*notifyFD)
	o := Options{Notifier: notifier}
	err := o.openFastPath(*fastPathFD, *serviceMapFD)
	if err == nil {
		err = start(ctx, *planPath, o)
	}
	if err != nil {
		notifier.Fatal(err)
	}
	return err
}

func start(ctx context.Context, planPath string, o Options) error {
	text, err := os.ReadFile(planPath)
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	var plan cluster.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("read the plan %s: %w", planPath, err)
	}
	// klog is upstream's, and global; the process has only this role.
	logs.InitLogs()
	defer logs.FlushLogs()
	logging := logsapi.NewLoggingConfiguration()
	if err := logsapi.ValidateAndApply(logging, utilfeature.DefaultFeatureGate); err != nil {
		return fmt.Errorf("configure the log: %w", err)
	}
	o.Log = slog.New(logr.ToSlogHandler(klog.Background()))
	return run(ctx, plan, o)
}

// fullDisk is the notice of a node with disk pressure. A run with a command has no other
// message about it.
const fullDisk = "node %s has hardly any space or inodes left where the run has its files, so it evicts pods and starts no new ones; " +
	"free space there, or name a larger disk with --state-dir DIR"

// settleTime is the delay after the start before memory is given back. The first
// pods run by then. On a head the control role does the same at another moment.
const settleTime = 6 * time.Second

// run runs the role until ctx ends, and returns nil then. A process can call it only once,
// because upstream's registries are global.
func run(ctx context.Context, plan cluster.Plan, o Options) error {
	defer heap.Rest()
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"KubeletInUserNamespace": true}); err != nil {
		return fmt.Errorf("set feature gates: %w", err)
	}
	ready, later := make(chan struct{}), make(chan struct{})
	kubeletAPI, err1 := newAccess(plan.Paths.Kubeconfig(cluster.UserKubelet), awaitAuthorizer, holdBack(later))
	proxyAPI, err2 := newAccess(plan.Paths.Kubeconfig(cluster.UserProxy))
	volumeAPI, err3 := newAccess(plan.Paths.Kubeconfig(cluster.UserProvisioner))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	nodes, err := watchNode(kubeletAPI.client, plan.Node.Name, func() { close(ready) },
		func() { o.Notifier.Notice(fmt.Sprintf(fullDisk, plan.Node.Name)) })
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	var sender *serviceSender
	if o.ServiceMap != nil {
		sender = newServiceSender(plan.Node.Name, o.ServiceMap)
	}
	r := &role{
		sender: sender, plan: plan, o: o, began: time.Now(), nodes: nodes,
		ready: ready, made: make(chan struct{}), synced: make(chan struct{}), equipped: make(chan struct{}),
		filter: newPolicyFilter(plan, o, sender),
	}
	group.Go(func() error {
		closeLater(later, ready, ctx.Done())
		return nil
	})
	group.Go(func() error { return unlessDone(ctx, kubeletAPI.open(ctx, register(plan))) })
	group.Go(func() error {
		r.afterRegistration(ctx, kubeletAPI)
		return nil
	})
	group.Go(func() error { return unlessDone(ctx, proxyAPI.open(ctx, openServices)) })
	group.Go(func() error { return unlessDone(ctx, r.runKubelet(ctx, kubeletAPI)) })
	group.Go(func() error { return unlessDone(ctx, r.runProxy(ctx, proxyAPI)) })
	group.Go(func() error { return r.offerDevices(ctx, func() { close(r.equipped) }) })
	group.Go(func() error {
		r.filter.run(ctx, proxyAPI)
		return nil
	})
	group.Go(func() error {
		newPodShares(plan, o).run(ctx)
		return nil
	})
	group.Go(func() error { return r.whenReady(ctx, volumeAPI) })
	group.Go(func() error { serveMetrics(ctx, plan, o.Log); return nil })
	r.serveFastPath(ctx, group, kubeletAPI)
	return group.Wait()
}

// unlessDone returns nil if ctx has ended, because components that stop return errors.
// Otherwise it returns err.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// role is one run of the node.
type role struct {
	plan   cluster.Plan
	o      Options
	began  time.Time
	nodes  informers.SharedInformerFactory
	filter *policyFilter
	sender *serviceSender // nil without a fast path
	ready  chan struct{}  // closed when the Node is Ready

	made    chan struct{} // closed when kubelet is set
	kubelet *nodeKubelet
	synced  chan struct{} // closed when Services work and proxy is set
	proxy   *serviceProxy

	equipped chan struct{} // closed when the API server knows the node's devices
}

func (r *role) reached(phase string) {
	r.o.Log.Info("Node role reached a phase", "phase", phase, "after", time.Since(r.began).Round(time.Millisecond))
	r.o.Notifier.Phase(phase)
}

// afterRegistration watches the Node once it exists, and reports it ready to the API server
// as soon as the kubelet is.
func (r *role) afterRegistration(ctx context.Context, api *access) {
	if !api.opened(ctx) {
		return
	}
	r.reached(phaseRegistered)
	nodes := r.nodes.Core().V1().Nodes().Informer()
	r.nodes.Start(ctx.Done())
	select {
	case <-nodes.HasSyncedChecker().Done():
	case <-ctx.Done():
		return
	}
	select {
	case <-r.made:
		reportReady(ctx, &r.kubelet.running)
	case <-ctx.Done():
	}
}

func (r *role) runKubelet(ctx context.Context, api *access) error {
	k, err := newKubelet(ctx, r.plan, api, r.filter, r.o.Log)
	if err != nil {
		return err
	}
	if err := awaitRuntime(ctx, r.plan.Paths.ContainerdSocket()); err != nil {
		return err
	}
	r.reached(phaseRuntime)
	r.kubelet = k
	close(r.made)
	return k.run(ctx)
}

// serveFastPath runs the parts of the fast path that need capabilities over pods, or access
// to the API server. The net role has neither.
func (r *role) serveFastPath(ctx context.Context, group *errgroup.Group, api *access) {
	if r.sender == nil {
		return
	}
	context.AfterFunc(ctx, func() { r.o.FastPath.Close() })
	group.Go(func() error { return unlessDone(ctx, fastpath.ServeInside(r.o.FastPath)) })
	group.Go(func() error { return r.sender.run(ctx) })
	deaf := deafPods{node: r.plan.Node.Name, client: api.client, log: r.o.Log}
	group.Go(func() error { return r.sender.answer(ctx, deaf.replace) })
}

func (r *role) runProxy(ctx context.Context, api *access) error {
	p, err := newServiceProxy(ctx, r.plan, api)
	if err != nil {
		return err
	}
	p.sender = r.sender
	if err := p.start(ctx, r.nodes); err != nil {
		return err
	}
	if ctx.Err() == nil {
		r.reached(phaseProxy)
		r.proxy = p
		close(r.synced)
	}
	return nil
}

// whenReady waits until all parts of the role work, and reports Ready to the supervisor.
// Then it runs the controllers of volumes, until ctx ends.
func (r *role) whenReady(ctx context.Context, volumeAPI *access) error {
	for _, c := range []struct {
		done  <-chan struct{}
		phase string
	}{{r.made, ""}, {r.ready, phaseKubelet}, {r.synced, ""}, {r.equipped, ""}} {
		select {
		case <-c.done:
			if c.phase != "" {
				r.reached(c.phase)
			}
		case <-ctx.Done():
			return nil
		}
	}
	// After a restart of the role, the Node may still be Ready from its previous run.
	if err := poll(ctx, r.kubelet.healthy); err != nil {
		return unlessDone(ctx, err)
	}
	r.o.Log.Info("Node role is ready", "after", time.Since(r.began).Round(time.Millisecond))
	r.o.Notifier.Ready()
	heap.Rest()
	go heap.Settle(ctx, settleTime)

	go r.o.Notifier.Alive(ctx, func(context.Context) error {
		return errors.Join(r.kubelet.healthy(), r.proxy.healthy())
	})
	// Upstream's controllers return only when ctx ends.
	return unlessDone(ctx, runVolumes(ctx, r.plan, volumeAPI, r.o.Log))
}
