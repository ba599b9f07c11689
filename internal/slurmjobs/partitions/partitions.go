// Package partitions shows each Slurm partition as a Node of a Kubernetes cluster, with the name,
// labels and taint that WLM-Operator gave such Nodes, and with the partition's free resources. No
// kubelet serves these Nodes. So the package keeps them ready, and ends the pods that are bound to
// them. Which objects become jobs, and when this process leads, belongs to package controller.
package partitions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"berth.dev/berth/internal/job/slurm"
)

// Options configures Run.
type Options struct {
	// Config connects to the API server. Its user may write Nodes.
	Config *rest.Config
	// Namespace limits whose pods are ended. Empty means all namespaces.
	Namespace string
	// Host is in the names of the Nodes.
	Host string
	// Owner marks the Nodes. Run changes and removes no other Nodes.
	Owner string
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

// server shows partitions as Nodes.
type server struct {
	Options
	nodes  core.NodeInterface
	leases coordination.LeaseInterface
	pods   *podEnder
	// foreign holds the names of Nodes that others own, which were reported.
	foreign map[string]bool
}

// Run shows the partitions until ctx ends. The Nodes stay, because another process with the same
// owner may serve them already. Run returns an error only for an invalid configuration; after
// other errors it tries again.
func Run(ctx context.Context, options Options) error {
	coreClient, err := core.NewForConfig(options.Config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	coordinationClient, err := coordination.NewForConfig(options.Config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	events := record.NewBroadcaster()
	defer events.Shutdown()
	events.StartRecordingToSink(&core.EventSinkImpl{Interface: coreClient.Events("")})
	s := &server{
		Options: options, nodes: coreClient.Nodes(), leases: coordinationClient.Leases(corev1.NamespaceNodeLease), foreign: map[string]bool{},
		pods: newPodEnder(coreClient, options, events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})),
	}
	var group sync.WaitGroup
	group.Go(func() { s.pods.run(ctx) })
	// Leases are renewed even while sinfo does not answer.
	group.Go(func() { s.repeat(ctx, "keep the nodes of partitions ready", s.keepReady) })
	s.repeat(ctx, "show partitions as nodes", s.sync)
	group.Wait()
	s.pods.running.Wait()
	return nil
}

// repeat calls do at the interval until ctx ends.
func (s *server) repeat(ctx context.Context, what string, do func(context.Context) error) {
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.Log.Debug(what + ": " + err.Error())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// list returns all Nodes for partitions by their names, also Nodes of other owners.
func (s *server) list(ctx context.Context) (map[string]*corev1.Node, error) {
	found, err := s.nodes.List(ctx, metav1.ListOptions{LabelSelector: managedLabel + "=" + component})
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
func (s *server) sync(ctx context.Context) error {
	present, err := s.list(ctx)
	if err != nil {
		return err
	}
	partitions, slurmErr := slurm.Partitions(ctx, s.Ask)
	errs := []error{slurmErr}
	served := map[string]*corev1.Node{}
	for _, partition := range partitions {
		node, err := s.put(ctx, present, newNode(partition, s.Host, s.Owner))
		if errs = append(errs, err); node != nil {
			served[node.Name] = node
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
	return errors.Join(errs...)
}

// keepReady renews the leases of the Nodes. It makes a Node ready again whose lease was not renewed
// in time, because the node controller does not.
func (s *server) keepReady(ctx context.Context) error {
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
