// Package partitions shows each Slurm partition as a Node of a Kubernetes cluster, with the name,
// labels and taint that WLM-Operator gave such Nodes, and with the partition's free resources. It
// shows each job of an object as a pod that is bound to the Node of the job's partition. No
// kubelet serves these Nodes. So the package keeps them ready, and ends all other pods that are
// bound to them. Which objects become jobs, and when this process leads, belongs to package
// controller. The logs of pods belong to package joblog.
package partitions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// Options configures Run.
type Options struct {
	// Config connects to the API server. Its user may write Nodes.
	Config *rest.Config
	// Namespace holds the objects. Empty means all namespaces. Otherwise the scheduler binds no
	// pods to the Nodes, because nobody would end the pods of other namespaces.
	Namespace string
	// Host is a part of the names of the Nodes, and usually the name of a host.
	Host string
	// Owner marks the Nodes. Run changes and removes no other Nodes.
	Owner string
	// Logs is the address where a server for the logs of pods listens. If it is invalid, the
	// Nodes have no address.
	Logs netip.AddrPort
	// Jobs gives access to the objects. If its functions are nil, no jobs are shown.
	Jobs Jobs
	// Ask runs sinfo.
	Ask slurm.Ask
	// Interval is the time between two calls of sinfo, and between two renewals of the
	// Nodes' leases.
	Interval time.Duration
	// FirstDelay and MaxDelay bound the time until the next pod of a controller is ended.
	FirstDelay, MaxDelay time.Duration
	Log                  *slog.Logger
}

// Default returns options with defaults, where there are any.
func Default() Options {
	return Options{
		Interval: 10 * time.Second, FirstDelay: 10 * time.Second, MaxDelay: 5 * time.Minute,
		Log: slog.New(slog.DiscardHandler),
	}
}

// Server shows partitions as Nodes, and jobs as pods.
type Server struct {
	Options
	core   core.CoreV1Interface
	nodes  core.NodeInterface
	leases coordination.LeaseInterface
	pods   *podEnder // while Run runs
	// foreign holds the names of Nodes that others own, which were reported.
	foreign map[string]bool

	mu sync.Mutex
	// jobs is nil unless Run runs.
	jobs *jobPods
	// warned is true once report has reported missing rights.
	warned bool
}

// New returns a server. It sends no requests.
func New(options Options) (*Server, error) {
	coreClient, err := core.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	coordinationClient, err := coordination.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &Server{
		Options: options, core: coreClient, nodes: coreClient.Nodes(), leases: coordinationClient.Leases(corev1.NamespaceNodeLease), foreign: map[string]bool{},
	}, nil
}

// Check returns an error if the user of Config may not list Nodes.
func (s *Server) Check(ctx context.Context) error {
	_, err := s.list(ctx)
	return err
}

// Run shows the partitions and jobs until ctx ends. The Nodes and pods stay, because another
// process with the same owner may serve them already. After errors it tries again. Run may be
// called again once it has returned.
func (s *Server) Run(ctx context.Context) {
	events := record.NewBroadcaster()
	defer events.Shutdown()
	events.StartRecordingToSink(&core.EventSinkImpl{Interface: s.core.Events("")})
	s.pods = newPodEnder(s.core, s.Options, events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}))
	var group sync.WaitGroup
	if s.Jobs.All != nil {
		jobs := s.newJobPods()
		s.setJobs(jobs)
		defer s.setJobs(nil)
		group.Go(func() { jobs.run(ctx) })
	}
	group.Go(func() { s.pods.run(ctx) })
	// Leases are renewed even while sinfo does not answer.
	group.Go(func() { s.repeat(ctx, "keep the nodes of partitions ready", s.keepReady) })
	s.repeat(ctx, "show partitions as nodes", s.sync)
	group.Wait()
	s.pods.running.Wait()
}

// newJobPods returns the pods of this call of Run.
func (s *Server) newJobPods() *jobPods {
	jobs := &jobPods{
		Jobs: s.Jobs, interval: s.Interval, client: s.core, pods: s.pods, log: func(text string) { s.Log.Debug(text) },
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[kinds.Reference](s.Interval/10, 6*s.Interval)),
		nodes: map[string]string{}, made: map[kinds.Reference]types.UID{}, problems: map[kinds.Reference]string{},
	}
	s.pods.changed = jobs.queue.Add
	return jobs
}

func (s *Server) setJobs(jobs *jobPods) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = jobs
}

// running returns the pods of jobs, or nil unless Run runs.
func (s *Server) running() *jobPods {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs
}

// Changed updates the pod of an object that has changed.
func (s *Server) Changed(ref kinds.Reference) {
	if jobs := s.running(); jobs != nil { // otherwise Run lists the objects
		jobs.queue.Add(ref)
	}
}

// Problem returns the reason why an object has no pod, or "".
func (s *Server) Problem(ref kinds.Reference) string {
	jobs := s.running()
	if jobs == nil {
		return ""
	}
	jobs.mu.Lock()
	defer jobs.mu.Unlock()
	return jobs.problems[ref]
}

// Shown returns the object whose job a pod shows, or nil.
func (s *Server) Shown(namespace, name string) *unstructured.Unstructured {
	jobs := s.running()
	if jobs == nil {
		return nil
	}
	pod := jobs.pods.find(namespace, name)
	if pod == nil {
		return nil
	}
	ref, uid, ok := jobOf(pod)
	if !ok {
		return nil
	}
	object := jobs.Object(ref)
	if object == nil || object.GetUID() != uid {
		return nil
	}
	return object
}

// repeat calls do at the interval until ctx ends.
func (s *Server) repeat(ctx context.Context, what string, do func(context.Context) error) {
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.report(what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// report logs an error after which Run tries again. The first error about missing rights is a
// warning, because there are no Nodes without them.
func (s *Server) report(what string, err error) {
	s.mu.Lock()
	warn := apierrors.IsForbidden(err) && !s.warned
	s.warned = s.warned || warn
	s.mu.Unlock()
	if warn {
		s.Log.Warn(Explain(what, err).Error())
		return
	}
	s.Log.Debug(what + ": " + err.Error())
}

// Explain adds to an error what was done, and the remedy for missing rights.
func Explain(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w: have the cluster's administrator apply the output of 'berth slurm-jobs setup --partition-nodes'", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// list returns all Nodes for partitions by their names, also Nodes of other owners.
func (s *Server) list(ctx context.Context) (map[string]*corev1.Node, error) {
	found, err := s.nodes.List(ctx, metav1.ListOptions{LabelSelector: cluster.ManagedByLabel + "=" + component})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := map[string]*corev1.Node{}
	for i := range found.Items {
		nodes[found.Items[i].Name] = &found.Items[i]
	}
	return nodes, nil
}

// sync makes the Nodes match the partitions. If Slurm does not answer, it keeps the Nodes as they
// are.
func (s *Server) sync(ctx context.Context) error {
	present, err := s.list(ctx)
	if err != nil {
		return err
	}
	partitions, slurmErr := slurm.Partitions(ctx, s.Ask)
	errs := []error{slurmErr}
	served, names := map[string]*corev1.Node{}, map[string]string{}
	for _, partition := range partitions {
		wanted := s.newNode(partition)
		node, err := s.put(ctx, present, wanted)
		errs = append(errs, err)
		switch {
		case node != nil:
			served[node.Name], names[partition.Name] = node, node.Name
		case err != nil && s.pods.serves(wanted.Name):
			served[wanted.Name] = wanted // its pods are there, and the next call may create it again
		}
	}
	for name, node := range present {
		switch {
		case served[name] != nil || !s.owns(node):
		case slurmErr != nil:
			served[name] = node
		default:
			errs = append(errs, s.remove(ctx, node))
		}
	}
	s.pods.watch(ctx, served)
	if jobs := s.running(); jobs != nil && slurmErr == nil {
		jobs.setNodes(names)
	}
	return errors.Join(errs...)
}

// keepReady renews the leases of the Nodes. It makes a Node ready again whose lease was not renewed
// in time, because the node controller does not.
func (s *Server) keepReady(ctx context.Context) error {
	nodes, err := s.list(ctx)
	errs := []error{err}
	for _, node := range nodes {
		if !s.owns(node) {
			continue
		}
		errs = append(errs, s.renew(ctx, node))
		if condition := readyOf(node); condition == nil || condition.Status != corev1.ConditionTrue {
			errs = append(errs, s.patchStatus(ctx, node, map[string]any{"conditions": []corev1.NodeCondition{ready("Slurm partition")}}))
		}
	}
	return errors.Join(errs...)
}
