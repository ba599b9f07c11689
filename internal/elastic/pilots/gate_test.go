package pilots

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/elastic/wishes"
)

// TestGateOpens checks that a pod with wishes goes only to its own node, that another pod may go
// to any node, and that gates and tolerations of others stay.
func TestGateOpens(t *testing.T) {
	for _, c := range []struct {
		name        string
		annotations map[string]string
		only, told  string
		selected    string
	}{
		{"wishes", map[string]string{"slurm.hpk.io/flags": "-p long --wrap=id"}, "pod u", "slurm.hpk.io/flags: --wrap: ", ""},
		{"a gang", map[string]string{"slurm.berth.dev/gang": "g", "slurm.berth.dev/gang-size": "2"}, "gang ns/g", "", ""},
		{"nothing that has a meaning", map[string]string{"slurm.hpk.io/flags": "--wrap=id"}, "", "slurm.hpk.io/flags: --wrap: ", ""},
		{"a node by hand", map[string]string{"slurm.berth.dev/partition": "long"}, "", "", "train"},
	} {
		keep := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Annotations: c.annotations},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "other"}, {Name: cluster.WishesGate}}, Tolerations: []corev1.Toleration{keep},
			},
		}
		if c.selected != "" {
			pod.Spec.NodeSelector = map[string]string{cluster.ForLabel: c.selected}
		}
		client := fake.NewClientset(pod).CoreV1()
		log := slog.New(slog.DiscardHandler)
		l := &Loop{Options: Options{Log: log}, core: client, events: newEvents(client, log), owners: &owners{byPod: map[types.UID][]wishes.Owner{"u": nil}}}
		if !gated(pod) {
			t.Errorf("%s: the gate is not seen", c.name)
		}
		if err := l.openGate(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		got, err := client.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Spec.SchedulingGates) != 1 || got.Spec.SchedulingGates[0].Name != "other" || got.Spec.Tolerations[0] != keep {
			t.Errorf("%s: %+v", c.name, got.Spec)
		}
		value := got.Spec.NodeSelector[cluster.ForLabel]
		if value != plan.ForValue(c.only)+c.selected || c.selected == "" && (value != "") != (len(got.Spec.Tolerations) == 2 && got.Spec.Tolerations[1].Value == value) {
			t.Errorf("%s: selector %v, tolerations %v", c.name, got.Spec.NodeSelector, got.Spec.Tolerations)
		}
		if wanted, _ := l.wanted(got); wanted.Only() != c.only {
			t.Errorf("%s: the pilot is for %q", c.name, wanted.Only())
		}
		if wanted, _ := l.wanted(pod); wanted.Only() != "" {
			t.Errorf("%s: a pod that does not select its node gets one for itself", c.name)
		}
		events, err := client.Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if told := len(events.Items) == 1 && strings.HasPrefix(events.Items[0].Message, c.told); told != (c.told != "") {
			t.Errorf("%s: events %v", c.name, events.Items)
		}
	}
}

// A cluster that submits no pilots opens the gates that it finds closed, and only these.
func TestClusterWithoutPilotsOpensGates(t *testing.T) {
	pod := func(name string, gates ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
		for _, gate := range gates {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
		}
		return p
	}
	client := fake.NewClientset(pod("saved", "other", cluster.WishesGate), pod("foreign", "other"), pod("free")).CoreV1()
	if err := openAll(t.Context(), client, "no sbatch", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"saved": 1, "foreign": 1, "free": 0} {
		got, err := client.Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(got.Spec.SchedulingGates) != want || gated(got) || len(got.Spec.NodeSelector) > 0 {
			t.Errorf("%s: %v, %+v", name, err, got.Spec)
		}
	}
	events, err := client.Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].InvolvedObject.Name != "saved" || events.Items[0].Reason != noNodeRequested ||
		!strings.HasSuffix(events.Items[0].Message, "are ignored: no sbatch") {
		t.Errorf("%v, %+v", err, events.Items)
	}
}

// slowPatches is an API server that answers patches of pods when answer is closed. A reactor of the
// fake clientset would keep all other requests waiting.
type slowPatches struct {
	core.CoreV1Interface
	asked, answer chan struct{}
}

func (s slowPatches) Pods(namespace string) core.PodInterface {
	return slowPods{s.CoreV1Interface.Pods(namespace), s}
}

type slowPods struct {
	core.PodInterface
	slowPatches
}

func (s slowPods) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.Pod, error) {
	close(s.asked)
	<-s.answer
	return &corev1.Pod{}, nil
}

// TestGatesDelayNoPass checks that a pass does not wait for the requests that open gates.
func TestGatesDelayNoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		asked, answer := make(chan struct{}), make(chan struct{})
		b.core = slowPatches{b.core, asked, answer}
		b.waitingPod("gated", func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: cluster.WishesGate}}
			pod.Status.Conditions = nil
		})
		_ = b.owners.read(t.Context(), b.view.pods(), func() { signal(b.known) })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go b.openGates(ctx)
		<-asked
		b.waitingPod("waits", nil)
		b.run(int(judgeLimit/time.Second) + 1)
		if len(b.slurm.jobs) != 1 {
			t.Errorf("%d jobs while a gate is being opened, want 1", len(b.slurm.jobs))
		}
		close(answer)
	})
}

// TestOwnersAreReadOnce checks that known objects are kept until the pod has a node, and that each
// pod is reported.
func TestOwnersAreReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		pod, reported := b.waitingPod("p", nil), 0
		for range 2 {
			if err := b.owners.read(t.Context(), b.view.pods(), func() { reported++ }); err != nil {
				t.Fatal(err)
			}
		}
		if reported != 1 || !b.owners.known(pod) {
			t.Errorf("the pod was reported %d times, want once", reported)
		}
		pod.Spec.NodeName = "n1"
		if err := b.owners.read(t.Context(), b.view.pods(), func() {}); err != nil || b.owners.known(pod) {
			t.Errorf("a pod on a node is still known; error %v", err)
		}
	})
}
