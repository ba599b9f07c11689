package control

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/kube/notify"
)

// registerNode does what a kubelet does, once, without a retry.
func registerNode(ctx context.Context, client kubernetes.Interface, name string) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	_, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func testPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "example.org/none"}},
			// The controllers taint a node whose kubelet they have not seen.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
}

// awaitScheduled waits until the pod has a node.
func awaitScheduled(t testing.TB, client kubernetes.Interface, name string) {
	t.Helper()
	eventually(t, "schedule pod "+name, func() error {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("not scheduled: %+v", pod.Status.Conditions)
		}
		return nil
	})
}

// BenchmarkStart measures a control plane from exec to a scheduled pod, with
// clients that come at once, as the node role's do. Run it with
// -benchtime 10x; the metrics are medians in milliseconds.
func BenchmarkStart(b *testing.B) {
	samples := map[string][]float64{}
	note := func(name string, d time.Duration) {
		samples[name] = append(samples[name], float64(d.Microseconds())/1000)
	}
	for range b.N {
		c := newTestCluster(b)
		r := c.start(b)
		if err := registerNode(b.Context(), c.client(b, cluster.UserKubelet), c.plan.Node.Name); err != nil {
			b.Fatal(err)
		}
		note("node-ms", time.Since(r.began))
		admin := c.client(b, cluster.UserAdmin)
		eventually(b, "create pod", func() error {
			_, err := admin.CoreV1().Pods("default").Create(b.Context(), testPod("first"), metav1.CreateOptions{})
			return err
		})
		note("pod-ms", time.Since(r.began))
		awaitScheduled(b, admin, "first")
		note("usable-ms", time.Since(r.began))
		note("ready-ms", r.awaitReady(b))
		for _, phase := range []string{PhaseEtcd, PhaseServing, PhaseAccess, PhaseAddons} {
			note(phase+"-ms", r.await(b, notify.Event{Event: notify.KindPhase, Name: phase}))
		}
		note("stop-ms", r.stop(b))
		usage := r.command.ProcessState.SysUsage().(*syscall.Rusage)
		note("cpu-ms", r.command.ProcessState.UserTime()+r.command.ProcessState.SystemTime())
		samples["rss-MB"] = append(samples["rss-MB"], float64(usage.Maxrss)/1024)
	}
	b.ReportMetric(0, "ns/op")
	for name, values := range samples {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], name)
	}
}
