package partitions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/control"
	"berth.dev/berth/internal/kube/control/controltest"
	"berth.dev/berth/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(controltest.Run(m, control.Main)) }

// timeout limits each wait of a test.
const timeout = 60 * time.Second

// fixture is an API server, and the output of sinfo.
type fixture struct {
	*testing.T
	config *rest.Config
	client kubernetes.Interface
	jobs   Jobs
	logs   netip.AddrPort
	server *Server

	mu     sync.Mutex
	output string
	err    error
	asked  int
	// denied makes denying refuse to create Nodes.
	denied bool
}

// denying refuses to create Nodes for the server under test while denied is set.
type denying struct {
	*fixture
	http.RoundTripper
}

func (d denying) RoundTrip(request *http.Request) (*http.Response, error) {
	d.mu.Lock()
	denied := d.denied
	d.mu.Unlock()
	if denied && request.Method == http.MethodPost && request.URL.Path == "/api/v1/nodes" {
		return nil, errors.New("denied")
	}
	return d.RoundTripper.RoundTrip(request)
}

func (f *fixture) deny(denied bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denied = denied
}

func (f *fixture) ask(context.Context, ...string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return []byte(f.output), f.err
}

// awaitCalls waits until sinfo has been asked n more times. Then its answer before the last call
// has been dealt with.
func (f *fixture) awaitCalls(n int) {
	f.Helper()
	asked := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.asked
	}
	end := asked() + n
	f.await("calls of sinfo", func() error {
		if now := asked(); now < end {
			return fmt.Errorf("%d of %d", now, end)
		}
		return nil
	})
}

func (f *fixture) set(err error, lines ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.output, f.err = strings.Join(lines, "\n")+"\n", err
}

// run shows the partitions until the returned function is called.
func (f *fixture) run() (stop func()) {
	options := Default()
	options.Config, options.Host, options.Owner, options.Ask = f.config, "login1", "lab", f.ask
	options.Interval = 20 * time.Millisecond
	options.FirstDelay, options.MaxDelay = time.Hour, time.Hour
	options.Jobs, options.Logs = f.jobs, f.logs
	server, err := New(options)
	if err != nil {
		f.Fatal(err)
	}
	f.server = server
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	f.Cleanup(stop)
	return stop
}

// await calls check until it returns nil.
func (f *fixture) await(what string, check func() error) {
	f.Helper()
	testutil.Await(f, timeout, what, check)
}

// awaitNode waits until want accepts a Node, and returns the Node.
func (f *fixture) awaitNode(name string, want func(*corev1.Node) bool) *corev1.Node {
	f.Helper()
	var node *corev1.Node
	f.await("node "+name, func() (err error) {
		node, err = f.client.CoreV1().Nodes().Get(f.Context(), name, metav1.GetOptions{})
		if err == nil && !want(node) {
			err = fmt.Errorf("it is %+v", node)
		}
		return err
	})
	return node
}

func (f *fixture) awaitGone(name string) {
	f.Helper()
	f.await("node "+name+" goes", func() error {
		_, err := f.client.CoreV1().Nodes().Get(f.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

const (
	mainLine  = "main up infinite 1-infinite 2 8 16000 4000 4/12/0/16"
	smallLine = "small down 1-00:00:00 1-4 3 2 2000 0 0/6/0/6"
)

func TestPartitions(t *testing.T) {
	server := controltest.Start(t)
	config := server.Config(t, "admin", "system:masters")
	config.QPS = -1 // no limit
	f := &fixture{T: t, client: kubernetes.NewForConfigOrDie(config)}
	f.config = rest.CopyConfig(config)
	f.config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return denying{f, inner} })
	f.set(nil, mainLine, smallLine)
	stop := f.run()
	f.testNodes()
	f.testLostNode()
	f.testPods()
	f.testReplicas()
	f.testSuccessor(stop)
	if _, err := f.client.CoreV1().Nodes().Get(t.Context(), "slurm-login1-other", metav1.GetOptions{}); err != nil {
		t.Error(err) // another program's
	}
}

func (f *fixture) testNodes() {
	nodes := f.client.CoreV1().Nodes()
	// The node controller finds the lease, and removes the taint of a new Node.
	node := f.awaitNode("slurm-login1-main", func(node *corev1.Node) bool {
		taints := node.Spec.Taints
		return len(taints) == 2 && taints[0].MatchTaint(&Taint) && taints[0].Value == "wlm" && taints[1].Effect == corev1.TaintEffectPreferNoSchedule
	})
	for label, want := range map[string]string{
		"type": "virtual-kubelet", "kubernetes.io/role": "agent", "wlm.sylabs.io/partition": "main", "wlm.sylabs.io/nodes": "2",
		"wlm.sylabs.io/cpu-per-node": "8", "wlm.sylabs.io/mem-per-node": "16000", "wlm.sylabs.io/wall-time": "2147483647",
	} {
		if node.Labels[label] != want {
			f.Errorf("label %s: got %q, want %q", label, node.Labels[label], want)
		}
	}
	if _, exists := node.Labels[corev1.LabelHostname]; exists {
		f.Error("pods that spread over hosts would wait for this node")
	}
	if node.Status.Capacity.Cpu().Value() != 16 || node.Status.Allocatable.Cpu().Value() != 12 || node.Status.Allocatable.Memory().Value() != 24000<<20 {
		f.Errorf("got %+v", node.Status)
	}
	small := f.awaitNode("slurm-login1-small", func(*corev1.Node) bool { return true })
	if !small.Status.Allocatable.Cpu().IsZero() || small.Labels["wlm.sylabs.io/nodes"] != "3" || small.Labels["wlm.sylabs.io/wall-time"] != "86400" {
		f.Errorf("got %+v", small)
	}
	f.await("lease", func() error {
		lease, err := f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(f.Context(), node.Name, metav1.GetOptions{})
		if err == nil && (len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != node.UID) {
			err = fmt.Errorf("got %+v", lease)
		}
		return err
	})
	// Slurm does not answer for a while, and then has other partitions and another state.
	f.set(errors.New("Unable to contact slurm controller"))
	if err := nodes.Delete(f.Context(), "slurm-login1-small", metav1.DeleteOptions{}); err != nil {
		f.Error(err)
	}
	if _, err := nodes.Create(f.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "slurm-login1-other"}}, metav1.CreateOptions{}); err != nil {
		f.Error(err)
	}
	f.awaitCalls(3)
	f.set(nil, strings.Replace(mainLine, "4/12/0", "5/11/0", 1), "other up 30:00 1-infinite 1 1 1 0 0/1/0/1", "Big_X up 30:00 1-infinite 1 1 1 0 0/1/0/1")
	f.awaitNode("slurm-login1-main", func(node *corev1.Node) bool { return node.Status.Allocatable.Cpu().Value() == 11 })
	f.awaitGone("slurm-login1-small")
	name := nodeName("login1", "Big_X")
	if !strings.HasPrefix(name, "slurm-login1-big-x-") || name == nodeName("login1", "big-x") {
		f.Errorf("got %s", name)
	}
	f.awaitNode(name, func(node *corev1.Node) bool { return node.Labels["wlm.sylabs.io/partition"] == "Big_X" })
	if other := f.awaitNode("slurm-login1-other", func(*corev1.Node) bool { return true }); len(other.Labels) > 0 {
		f.Errorf("changed another program's node: %+v", other)
	}
	// Slurm does not answer again: the nodes stay.
	node = f.awaitNode("slurm-login1-main", func(*corev1.Node) bool { return true })
	f.set(errors.New("Unable to contact slurm controller"))
	f.awaitCalls(3)
	if now := f.awaitNode(node.Name, func(*corev1.Node) bool { return true }); now.UID != node.UID {
		f.Error("the node was removed while Slurm did not answer")
	}
	// The node controller has taken it for lost meanwhile.
	_, err := nodes.Patch(f.Context(), node.Name, types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		f.Error(err)
	}
	f.awaitNode(node.Name, func(node *corev1.Node) bool { return readyOf(node).Status == corev1.ConditionTrue })
	f.set(nil, mainLine)
	f.awaitGone(name)
}

// testLostNode deletes a Node that cannot be created again at once. Its pods stay watched.
func (f *fixture) testLostNode() {
	const name = "slurm-login1-main"
	f.awaitNode(name, func(*corev1.Node) bool { return true })
	f.awaitCalls(2)
	f.deny(true)
	if err := f.client.CoreV1().Nodes().Delete(f.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.Error(err)
	}
	f.awaitCalls(3)
	if !f.server.pods.serves(name) {
		f.Error("the pods of a node that cannot be created are not watched")
	}
	f.deny(false)
	f.awaitNode(name, func(*corev1.Node) bool { return true })
}

// testSuccessor checks that a process that does not lead any more leaves the Nodes to its successor.
func (f *fixture) testSuccessor(stop func()) {
	before := f.awaitNode("slurm-login1-main", func(*corev1.Node) bool { return true })
	stop()
	f.run()
	f.awaitCalls(2)
	if now := f.awaitNode(before.Name, func(*corev1.Node) bool { return true }); now.UID != before.UID {
		f.Error("the node was removed at the end of its first server")
	}
	f.set(nil, smallLine)
	f.awaitGone(before.Name)
}

func (f *fixture) pod(name string, owner *metav1.OwnerReference) {
	f.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: "slurm-login1-main", AutomountServiceAccountToken: ptr.To(false),
			Containers:  []corev1.Container{{Name: "main", Image: "busybox"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	f.await("create pod "+name, func() error { // until the service account exists
		_, err := f.client.CoreV1().Pods("default").Create(f.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// awaitPod waits until want accepts a pod.
func (f *fixture) awaitPod(name string, want func(*corev1.Pod) bool) *corev1.Pod {
	f.Helper()
	var pod *corev1.Pod
	f.await("pod "+name, func() (err error) {
		pod, err = f.client.CoreV1().Pods("default").Get(f.Context(), name, metav1.GetOptions{})
		if err == nil && !want(pod) {
			err = fmt.Errorf("it is %+v", pod.Status)
		}
		return err
	})
	return pod
}

func failed(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == cluster.NotASlurmJob
}

// testPods binds pods to a Node. They fail, and can be deleted.
func (f *fixture) testPods() {
	f.pod("foreign", nil)
	pod := f.awaitPod("foreign", failed)
	if want := "node slurm-login1-main stands for a Slurm partition and runs no pods: remove the pod's toleration of virtual-kubelet.io/provider, or create a SlurmJob"; pod.Status.Message != want {
		f.Errorf("got %q", pod.Status.Message)
	}
	f.await("event", func() error {
		events, err := f.client.CoreV1().Events("default").List(f.Context(), metav1.ListOptions{FieldSelector: "reason=" + cluster.NotASlurmJob + ",involvedObject.name=foreign"})
		if err == nil && len(events.Items) != 1 {
			err = fmt.Errorf("got %+v", events.Items)
		}
		return err
	})
	f.pod("daemon", &metav1.OwnerReference{APIVersion: "example.dev/v1", Kind: "DaemonSet", Name: "d", UID: "d1", Controller: ptr.To(true)})
	if pod := f.awaitPod("daemon", failed); !strings.HasSuffix(pod.Status.Message, "give the DaemonSet a node affinity with the expression type NotIn virtual-kubelet") {
		f.Errorf("got %q", pod.Status.Message)
	}
}

func (f *fixture) awaitNoPod(name string) {
	f.Helper()
	f.await("pod "+name+" goes", func() error {
		_, err := f.client.CoreV1().Pods("default").Get(f.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

// testReplicas checks that a ReplicaSet, which replaces failed pods at once, does not fill the
// cluster with failed pods. Its next pod waits with the reason, and can be deleted.
func (f *fixture) testReplicas() {
	owner := &metav1.OwnerReference{APIVersion: "example.dev/v1", Kind: "ReplicaSet", Name: "r", UID: "r1", Controller: ptr.To(true)}
	f.pod("first", owner)
	f.awaitPod("first", failed)
	f.pod("next", owner)
	f.awaitPod("next", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodPending && pod.Status.Reason == cluster.NotASlurmJob && pod.Status.Message != ""
	})
	if err := f.client.CoreV1().Pods("default").Delete(f.Context(), "next", metav1.DeleteOptions{}); err != nil {
		f.Error(err)
	}
	f.awaitNoPod("next")
}

// TestMissingRights: a server that may only list Nodes reports it once.
func TestMissingRights(t *testing.T) {
	var log bytes.Buffer
	server := Server{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	denied := apierrors.NewForbidden(corev1.Resource("nodes"), "slurm-login1-main", errors.New("no role"))
	for range 2 {
		server.report("show partitions as nodes", errors.New("Slurm does not answer"))
		server.report("show partitions as nodes", errors.Join(nil, fmt.Errorf("create node: %w", denied)))
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "setup --partition-nodes") {
		t.Errorf("got %s", text)
	}
}
