package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/launch/members"
)

// Times of the kubelet's defaults.
const (
	leaseSeconds = 40
	renewEvery   = 10 * time.Second
	// registerAgain is the time until a kubelet tries again to register its node.
	registerAgain = time.Second
)

// simulated is one node of another job.
type simulated struct {
	api      string
	begin    time.Time
	lifetime context.Context
	members  *members.Members
	// met, welcomed and ready are the times from the start of join until the head has accepted the
	// node, until the node has its plan, and until its Node is Ready.
	met, welcomed, ready time.Duration
	// retries counts the failures of the API server during the registration.
	retries int
	end     context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	lost error
}

// join takes a seat and registers the node.
func (n *simulated) join(ctx context.Context, config members.PilotConfig) error {
	n.begin = time.Now()
	n.members = members.NewPilot(config)
	if _, err := n.members.Meet(ctx); err != nil {
		return err
	}
	n.met = time.Since(n.begin)
	offer := cluster.Offer{
		Host: config.Host, RunID: "simulated-" + config.Job,
		Node:  cluster.Node{CPUs: 1, MemoryBytes: 1 << 30, MaxPods: 110},
		Paths: cluster.Paths{Run: "/run/berth"},
	}
	answer, err := n.members.Join(ctx, offer, 1)
	if err != nil {
		return err
	}
	n.welcomed = time.Since(n.begin)
	living, end := context.WithCancel(n.lifetime)
	n.end = end
	n.running.Go(func() {
		err := n.members.Follow(living, offer.RunID, func(members.ImportRequest, func(error)) {})
		if living.Err() == nil {
			n.note(fmt.Errorf("follow the head: %w", err))
		}
	})
	plan := answer.Plan
	access, err := clientcmd.RESTConfigFromKubeConfig(answer.Files[plan.Paths.Kubeconfig(cluster.UserKubelet)].Content)
	if err != nil {
		return err
	}
	// The server's address in the pods' network exists only in the nodes' namespaces.
	access.Host, access.QPS = n.api, -1
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	for ; ; n.retries++ {
		if err := register(ctx, client, plan); err == nil || apierrors.IsAlreadyExists(err) {
			break
		} else if ctx.Err() != nil {
			return err
		}
		time.Sleep(registerAgain)
	}
	n.ready = time.Since(n.begin)
	n.members.SetReady(ctx)
	n.running.Go(func() { n.renew(living, client, plan.Node.Name) })
	return n.watch(living, client, plan.Node.Name)
}

// note keeps the first error of a node that has joined.
func (n *simulated) note(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost == nil {
		n.lost = err
	}
}

func (n *simulated) leave() {
	if n.end != nil {
		n.end()
	}
	if n.members != nil {
		n.members.Leave("the series is over")
	}
	n.running.Wait()
}

// lostOf returns the first errors of nodes that have failed since they joined, five at most.
func lostOf(all []*simulated) error {
	var problems []error
	for _, n := range all {
		n.mu.Lock()
		if n.lost != nil && len(problems) < 5 {
			problems = append(problems, fmt.Errorf("node %s: %w", n.members.Name(), n.lost))
		}
		n.mu.Unlock()
	}
	return errors.Join(problems...)
}

// register creates the Node and the Lease as a kubelet does.
func register(ctx context.Context, client kubernetes.Interface, plan cluster.Plan) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(int64(plan.Node.CPUs), resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(int64(plan.Node.MemoryBytes), resource.BinarySI),
		corev1.ResourcePods: *resource.NewQuantity(int64(plan.Node.MaxPods), resource.DecimalSI),
	}
	now := metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: plan.Node.Name, Labels: map[string]string{corev1.LabelHostname: plan.Node.Name, corev1.LabelOSStable: "linux"}},
		// No pod may be bound to the node, because it runs no containers.
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "simulated", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: plan.Addresses.Node.String()}, {Type: corev1.NodeHostName, Address: plan.Node.Name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: cluster.KubernetesVersion},
		},
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register node %s: %w", node.Name, err)
	}
	holder, seconds, at := node.Name, int32(leaseSeconds), metav1.NowMicro()
	lease := &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordination.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
	if _, err := client.CoordinationV1().Leases(lease.Namespace).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the lease of node %s: %w", node.Name, err)
	}
	return nil
}

// renew renews the Lease until ctx ends.
func (n *simulated) renew(ctx context.Context, client kubernetes.Interface, name string) {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		// Like a kubelet, the node tries again when the server is late. The lease expires after 40 s.
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if err != nil && ctx.Err() == nil && apierrors.IsNotFound(err) {
			n.note(fmt.Errorf("renew its lease: %w", err))
		}
	}
}

// watch starts the watches of a kubelet and of the service map of a node.
func (n *simulated) watch(ctx context.Context, client *kubernetes.Clientset, name string) error {
	own := "spec.nodeName=" + name
	for _, w := range []struct {
		of              rest.Interface
		resource, field string
	}{
		{client.CoreV1().RESTClient(), "pods", own},
		{client.CoreV1().RESTClient(), "nodes", "metadata.name=" + name},
		{client.CoreV1().RESTClient(), "services", ""},
		{client.StorageV1().RESTClient(), "csidrivers", ""},
		{client.NodeV1().RESTClient(), "runtimeclasses", ""},
	} {
		request := w.of.Get().Resource(w.resource).VersionedParams(&metav1.ListOptions{Watch: true, FieldSelector: w.field, TimeoutSeconds: seconds(24 * time.Hour)}, scheme.ParameterCodec)
		stream, err := request.Stream(ctx)
		if err != nil {
			return fmt.Errorf("watch %s for node %s: %w", w.resource, name, err)
		}
		n.running.Go(func() {
			for err == nil {
				_, _ = io.Copy(io.Discard, stream)
				stream.Close()
				// The server ends watches that fall behind, and the kubelet begins again.
				stream, err = request.Stream(ctx)
			}
			if ctx.Err() == nil {
				n.note(fmt.Errorf("watch %s again: %w", w.resource, err))
			}
		})
	}
	return nil
}

func seconds(d time.Duration) *int64 { s := int64(d / time.Second); return &s }

// addTimes adds how long the nodes took.
func (r *record) addTimes(joined []*simulated) {
	for name, of := range map[string]func(*simulated) time.Duration{
		"accepted": func(n *simulated) time.Duration { return n.met },
		"plan":     func(n *simulated) time.Duration { return n.welcomed },
		"Ready":    func(n *simulated) time.Duration { return n.ready },
	} {
		var all []float64
		for _, n := range joined {
			all = append(all, of(n).Seconds())
		}
		r.Values[name+", median, s"], r.Values[name+", last, s"] = median(all), last(all)
	}
	for _, n := range joined {
		r.Values["registrations again"] += float64(n.retries)
	}
}

// facts returns the conditions of a record.
func facts(o options) map[string]string {
	return map[string]string{"load": loadAverage(), "together": strconv.Itoa(o.together), "lease renewal, s": strconv.Itoa(int(renewEvery.Seconds())), "version": cluster.Version()}
}
