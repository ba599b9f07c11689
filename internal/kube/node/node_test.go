package node

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/base/notify"

	"berth.dev/berth/internal/base/cluster"
)

func TestRegister(t *testing.T) {
	client := fake.NewClientset()
	attempt := register(testPlan())
	for range 2 { // the role may be started again
		if err := attempt(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Labels["site/rack"] != "r2" || node.Labels[v1.LabelHostname] != "n1" || node.Spec.PodCIDR != "10.0.4.0/23" {
		t.Errorf("registered %+v", node)
	}
}

// TestNodeForSomePods checks that a node that is for some pods keeps others away from the start.
func TestNodeForSomePods(t *testing.T) {
	plan := testPlan()
	if node := newNode(plan); len(node.Spec.Taints) > 0 {
		t.Errorf("an ordinary node has the taints %v", node.Spec.Taints)
	}
	plan.Node.Labels = map[string]string{cluster.ForLabel: "train"}
	node := newNode(plan)
	if want := []v1.Taint{{Key: "slurm.berth.dev/for", Value: "train", Effect: v1.TaintEffectNoSchedule}}; !slices.Equal(node.Spec.Taints, want) {
		t.Errorf("got the taints %v", node.Spec.Taints)
	}
}

func TestWatchNodeReportsOnce(t *testing.T) {
	client := fake.NewClientset(newNode(testPlan()))
	var once sync.Once
	ready := make(chan struct{})
	factory, err := watchNode(client, "n1", func() {
		once.Do(func() { close(ready) })
	}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	select {
	case <-ready:
		t.Fatal("a node without conditions is ready")
	default:
	}
	for range 2 {
		node := newNode(testPlan())
		node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody reported that the node is ready")
	}
}

// An in-place resize dereferences all of these.
func TestPodCgroupConfigHasNoNil(t *testing.T) {
	manager := (&containerManager{cm.NewStubContainerManager()}).NewPodContainerManager()
	limited := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{
		Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi"), v1.ResourceCPU: resource.MustParse("1")},
	}}}}}
	for _, pod := range []*v1.Pod{{}, limited} {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			c, err := manager.GetPodCgroupConfig(pod, name)
			if err != nil || c == nil || c.Memory == nil || c.CPUQuota == nil || c.CPUShares == nil || c.CPUPeriod == nil {
				t.Fatalf("%s: %+v, %v", name, c, err)
			}
			if err := manager.SetPodCgroupConfig(klog.Background(), pod, c); err != nil {
				t.Error(err)
			}
		}
	}
	if c, _ := manager.GetPodCgroupConfig(limited, v1.ResourceMemory); *c.Memory != 64<<20 {
		t.Errorf("the pod's memory limit is %d", *c.Memory)
	}
}

func TestResizeIsNoticed(t *testing.T) {
	plan := testPlan()
	plan.CgroupsDelegated = false
	recorder := record.NewFakeRecorder(10)
	n := newNotices(plan, recorder)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "grower"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	for _, limit := range []string{"0", "1", "1", "2", "2", "0", "2"} {
		pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)}
		n.ShouldEvict(pod)
	}
	close(recorder.Events)
	var got []string
	for e := range recorder.Events {
		got = append(got, strings.TrimPrefix(e, "Normal CPULimitNotEnforced CPU limit of c ")[:3])
	}
	if want := []string{"(1)", "(2)", "(2)"}; !slices.Equal(got, want) {
		t.Errorf("events of %q, want %q", got, want)
	}
}

func TestNotices(t *testing.T) {
	id := ptr.To[int64]
	cpu := v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}}
	plain := v1.Container{Name: "plain"}
	for name, c := range map[string]struct {
		oneUID, cgroups bool
		spec            v1.PodSpec
		want            []string // beginnings of events
	}{
		"nothing asked":      {oneUID: true, spec: v1.PodSpec{Containers: []v1.Container{plain}}},
		"root":               {oneUID: true, spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{RunAsUser: id(0)}}},
		"user":               {oneUID: true, spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{RunAsUser: id(5), FSGroup: id(6)}}, want: []string{"Warning RunAsUserNotHonoured runAsUser 5, fsGroup 6 not honoured"}},
		"container's group":  {oneUID: true, spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "i", SecurityContext: &v1.SecurityContext{RunAsGroup: id(7)}}}}, want: []string{"Warning RunAsUserNotHonoured i: runAsGroup 7"}},
		"users are honoured": {spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{RunAsUser: id(5)}}},
		"processor":          {spec: v1.PodSpec{Containers: []v1.Container{plain, {Name: "c", Resources: cpu}}}, want: []string{"Normal CPULimitNotEnforced CPU limit of c (500m) is"}},
		"processor of all":   {spec: v1.PodSpec{Resources: &cpu}, want: []string{"Normal CPULimitNotEnforced CPU limit of the pod (500m) is"}},
		"cgroups":            {cgroups: true, spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: cpu}}}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := testPlan()
			plan.OneUID, plan.CgroupsDelegated = c.oneUID, c.cgroups
			recorder := record.NewFakeRecorder(10)
			n := newNotices(plan, recorder)
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}, Spec: c.spec}
			for range 3 {
				if n.ShouldEvict(pod).Evict {
					t.Fatal("evicted the pod")
				}
			}
			close(recorder.Events)
			var got []string
			for e := range recorder.Events {
				got = append(got, e)
			}
			if len(got) != len(c.want) {
				t.Fatalf("events %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("event %q, want %q...", got[i], c.want[i])
				}
			}
		})
	}
}

// fakeRuntime becomes ready, and then its network, one request after the other.
type fakeRuntime struct {
	cri.UnimplementedRuntimeServiceServer
	mu    sync.Mutex
	asked int
}

func (f *fakeRuntime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.asked == 1 {
		return nil, errors.New("server is not initialized yet")
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: f.asked > 2}, {Type: cri.NetworkReady, Status: f.asked > 3},
	}}}, nil
}

func TestAwaitRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	runtime := &fakeRuntime{}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, runtime)
	done := make(chan error, 1)
	go func() { done <- awaitRuntime(t.Context(), socket) }()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if runtime.asked != 4 {
		t.Errorf("asked %d times", runtime.asked)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitRuntime(ctx, "/absent"); err == nil || !strings.Contains(err.Error(), "/absent") {
		t.Errorf("error is %v", err)
	}
}

func TestDeletedUnwraps(t *testing.T) {
	pod := &v1.Pod{}
	for _, object := range []any{pod, cache.DeletedFinalStateUnknown{Obj: pod}} {
		if got, ok := deleted[*v1.Pod](object); !ok || got != pod {
			t.Errorf("deleted(%T) = %v, %v", object, got, ok)
		}
	}
	if _, ok := deleted[*v1.Pod](&v1.Node{}); ok {
		t.Error("a node is not a pod")
	}
}

func TestMainReportsWhyItFails(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = start(t.Context(), "/absent/plan.json", Options{Notifier: notify.NewWriter(w)})
	if err == nil || !strings.Contains(err.Error(), "/absent/plan.json") {
		t.Errorf("error is %v", err)
	}
	w.Close()
	if err := Main(t.Context(), []string{"--no-such-flag"}); err == nil {
		t.Error("an unknown flag is no error")
	}
}

func TestMachineIDsDiffer(t *testing.T) {
	a, b := testPlan(), testPlan()
	b.Node.Name = "n2"
	if machineID(a) == machineID(b) || len(machineID(a)) != 32 || !reflect.DeepEqual(machineID(a), machineID(testPlan())) {
		t.Errorf("%s, %s", machineID(a), machineID(b))
	}
}
