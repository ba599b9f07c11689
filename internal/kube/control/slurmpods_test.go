package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/control/controltest"
	"berth.dev/berth/internal/testutil"
)

// TestPodsOfOtherSystems checks what the policy changes of pods of manifests for other systems.
func TestPodsOfOtherSystems(t *testing.T) {
	c := newTestCluster(t)
	c.plan.Seats, c.plan.SubmitsPilots = 1, true
	text, err := json.Marshal(c.plan)
	if err != nil {
		t.Fatal(err)
	}
	controltest.WriteFile(t, c.plan.Paths.Plan(), text)
	r := c.start(t)
	r.awaitReady(t)
	admin := c.client(t, cluster.UserAdmin)
	gates := func(names ...string) (all []corev1.PodSchedulingGate) {
		for _, name := range names {
			all = append(all, corev1.PodSchedulingGate{Name: name})
		}
		return all
	}
	type fields struct {
		Scheduler string
		Selector  map[string]string
		Gates     []corev1.PodSchedulingGate
	}
	const own, normal = cluster.WishesGate, "default-scheduler"
	for _, sub := range []struct {
		name   string
		change func(*corev1.Pod)
		want   fields
	}{
		{"interLink, with a label of this cluster", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"virtual-node.interlink/type": "virtual-kubelet", "node-role.kubernetes.io/control-plane": ""}
		}, fields{Scheduler: normal, Selector: map[string]string{"node-role.kubernetes.io/control-plane": ""}}},
		{"a pod that shows a Slurm job", func(p *corev1.Pod) {
			p.Labels = map[string]string{"app.kubernetes.io/managed-by": "berth-slurm-jobs"}
			p.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
		}, fields{Scheduler: normal, Selector: map[string]string{"type": "virtual-kubelet"}}},
		{"KNoC", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"kubernetes.io/role": "agent", "beta.kubernetes.io/os": "linux", "type": "virtual-kubelet"}
		}, fields{Scheduler: normal, Selector: map[string]string{"beta.kubernetes.io/os": "linux"}}},
		{"slurm-bridge", func(p *corev1.Pod) { p.Spec.SchedulerName = "slurm-bridge-scheduler" }, fields{Scheduler: normal, Gates: gates(own)}},
		{"HPK, with a gate", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"slurm.hpk.io/flags": "-n 2"}
			p.Spec.SchedulingGates = gates("other")
		}, fields{Scheduler: normal, Gates: gates("other", own)}},
		{"berth", func(p *corev1.Pod) { p.Annotations = map[string]string{"slurm.berth.dev/partition": "long", "a": "b"} }, fields{Scheduler: normal, Gates: gates(own)}},
		{"JobSet", func(p *corev1.Pod) { p.Labels = map[string]string{"jobset.sigs.k8s.io/jobset-name": "s"} }, fields{Scheduler: normal, Gates: gates(own)}},
		{"a pod with a node", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"slurm.hpk.io/flags": "-n 2"}
			p.Spec.NodeName = "node-1"
		}, fields{Scheduler: normal}},
		{"an ordinary pod", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"type": "fast"} }, fields{Scheduler: normal, Selector: map[string]string{"type": "fast"}}},
	} {
		pod := testPod("changed")
		sub.change(pod)
		// The policy is in force once its informer has it.
		testutil.Await(t, testTimeout, sub.name, func() error {
			made, err := admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return err
			}
			if got := (fields{made.Spec.SchedulerName, made.Spec.NodeSelector, made.Spec.SchedulingGates}); !equality.Semantic.DeepEqual(got, sub.want) {
				return fmt.Errorf("got %+v, want %+v", got, sub.want)
			}
			return nil
		})
	}
	r.stop(t)
}

// TestPodsAreGatedOnlyIfGatesOpen checks that no pod waits for a loop that does not run, as on a host
// without sbatch.
func TestPodsAreGatedOnlyIfGatesOpen(t *testing.T) {
	for _, submits := range []bool{false, true} {
		protobuf, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		s := &seeder{encoder: legacyscheme.Codecs.EncoderForVersion(protobuf.Serializer, admissionv1.SchemeGroupVersion)}
		if err := s.addSlurmPods(cluster.Plan{Seats: 1, SubmitsPilots: submits}); err != nil || s.err != nil || len(s.objects) != 2 {
			t.Fatalf("%d objects: %v, %v", len(s.objects), err, s.err)
		}
		object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(s.objects[0].value, nil, nil)
		policy, ok := object.(*admissionv1.MutatingAdmissionPolicy)
		if err != nil || !ok {
			t.Fatalf("%T, %v", object, err)
		}
		gates := slices.ContainsFunc(policy.Spec.Variables, func(v admissionv1.Variable) bool { return v.Name == "gated" && v.Expression != "false" })
		if gates != submits {
			t.Errorf("a cluster that submits jobs: %v; it gates pods: %v", submits, gates)
		}
	}
}
