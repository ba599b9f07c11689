package control

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
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
		for _, phase := range []string{phaseEtcd, phaseServing, phaseAccess} {
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

// BenchmarkIdle measures what a control plane costs when nothing happens,
// after the start has settled.
func BenchmarkIdle(b *testing.B) {
	const measured = 30 * time.Second
	c := newTestCluster(b)
	r := c.start(b)
	r.awaitReady(b)
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-r.exited:
			b.Fatal("the role ended")
		}
	}
	wait(2 * settleTime)
	before := processCPU(b, r.command.Process.Pid)
	wait(measured)
	used := processCPU(b, r.command.Process.Pid) - before
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*used.Seconds()/measured.Seconds(), "%core")
	b.ReportMetric(residentMB(b, r.command.Process.Pid), "MB")
	r.stop(b)
}

// processCPU returns the CPU time that a process has used; the fields of its
// stat file are counted in hundredths of a second.
func processCPU(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// residentMB returns the memory of a process, with its proportional share of
// shared pages.
func residentMB(t testing.TB, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes float64
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "Pss:"); found {
			if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kilobytes / 1024
}
