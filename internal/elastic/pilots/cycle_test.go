package pilots

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// TestRefusedPilots checks that a refused pilot is followed by smaller ones, and that a pod that no
// pilot helps has an Event, and another try after refusedFor.
func TestRefusedPilots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		var asked []int
		b.Test = func(_ context.Context, job queue.Job) error {
			for _, option := range job.Options {
				if text, ok := strings.CutPrefix(option, "--cpus-per-task="); ok {
					cpus, _ := strconv.Atoi(text)
					if asked = append(asked, cpus); cpus > 2 {
						return &queue.Refused{Message: "no such node"}
					}
				}
			}
			return nil
		}
		// Pods share a pilot only if the size of a partition's nodes is known.
		b.partitions, b.asked = []slurm.Partition{{Name: "all", Up: true, NodeCPUs: 8, NodeMemoryMB: 65536}}, time.Now()
		for _, name := range []string{"a", "b", "c", "d"} {
			b.waitingPod(name, nil)
		}
		b.run(10)
		if len(b.slurm.jobs) != 2 || !slices.Equal(asked, []int{4, 2}) {
			t.Errorf("%d jobs, sizes %v, want two jobs with 2 CPUs after a refused one with 4", len(b.slurm.jobs), asked)
		}
		large := b.waitingPod("large", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("4")
		})
		b.run(60)
		if want := "Slurm refuses the job of a node for it: no such node"; len(asked) != 3 || b.problem(large) != want {
			t.Errorf("sizes %v, event %q, want one try, and %q", asked, b.problem(large), want)
		}
		if b.run(int(refusedFor.Seconds())); len(asked) != 4 || len(b.slurm.jobs) != 2 {
			t.Errorf("sizes %v, %d jobs, want one more try in %s", asked, len(b.slurm.jobs), refusedFor)
		}
	})
}

// TestJobThatNeverStarts checks that a job that Slurm accepted and never starts is cancelled, and
// not repeated soon.
func TestJobThatNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		pod := b.waitingPod("p", nil)
		b.run(2)
		for uid, p := range b.pilots {
			b.slurm.states[uid] = queue.State{ID: p.Job, State: slurm.Pending, Reason: "BadConstraints"}
		}
		b.run(10)
		want := "Slurm never starts the job of a node for it: BadConstraints"
		if len(b.slurm.jobs) != 1 || len(b.slurm.cancelled) != 1 || len(b.pilots) != 0 || b.problem(pod) != want {
			t.Errorf("%d jobs, %d cancelled, %d pilots, event %q, want one cancelled job and %q", len(b.slurm.jobs), len(b.slurm.cancelled), len(b.pilots), b.problem(pod), want)
		}
	})
}

// TestUnneededPilots checks that a job that no pod needs is cancelled while it waits, but not in
// the pause between a pod and its successor.
func TestUnneededPilots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		pod := b.waitingPod("p", nil)
		b.run(2)
		_ = b.view.podStore.Delete(pod)
		b.run(5)
		next := b.waitingPod("next", nil)
		b.run(30)
		if len(b.slurm.jobs) != 1 || len(b.slurm.cancelled) != 0 {
			t.Errorf("%d jobs, %d cancelled, want the successor to use the first", len(b.slurm.jobs), len(b.slurm.cancelled))
		}
		_ = b.view.podStore.Delete(next)
		if b.run(20); len(b.slurm.cancelled) != 1 || len(b.pilots) != 0 {
			t.Errorf("%d cancelled, %d pilots, want the job to be cancelled", len(b.slurm.cancelled), len(b.pilots))
		}
	})
}

// TestPodComesToIdleNode checks that a node stays, and takes pods again, if a pod has come that the
// view does not have yet.
func TestPodComesToIdleNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		pod := b.waitingPod("p", nil)
		b.run(2)
		node := b.join(b.start(), nil)
		_ = b.view.podStore.Delete(pod)
		if _, err := b.core.Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		came := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "came"}, Spec: corev1.PodSpec{NodeName: node.Name}}
		if _, err := b.core.Pods("ns").Create(t.Context(), came, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.run(90)
		now, err := b.core.Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
		if err != nil || now.Spec.Unschedulable || len(b.slurm.cancelled) != 0 {
			t.Errorf("%v, closed %t, %d cancelled, want an open node", err, now.Spec.Unschedulable, len(b.slurm.cancelled))
		}
		if err := b.core.Pods("ns").Delete(t.Context(), "came", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if b.run(90); len(b.slurm.cancelled) != 1 {
			t.Errorf("%d cancelled, want the idle pilot to leave", len(b.slurm.cancelled))
		}
	})
}

// TestNextLoopContinues checks that a loop that follows one that was killed submits no job again,
// and does not end nodes that it knows from records.
func TestNextLoopContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newBed(t)
		first.waitingPod("p", nil)
		first.run(2)
		for range 2 { // the job waits, then it runs
			next := newBed(t)
			next.core, next.view, next.slurm, next.Slurm = first.core, first.view, first.slurm, first.slurm
			if err := next.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			next.run(int(joinLimit.Seconds()) / 2)
			if len(next.slurm.jobs) != 1 || len(next.slurm.cancelled) != 0 || len(next.pilots) != 1 {
				t.Fatalf("%d jobs, %d cancelled, %d pilots, want one that waits", len(next.slurm.jobs), len(next.slurm.cancelled), len(next.pilots))
			}
			next.start()
			next.run(2)
			first = next
		}
	})
}

// TestNodeAwaitsScheduler checks that a node with a short idle time stays until the scheduler has
// tried the pods that waited for it.
func TestNodeAwaitsScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Idle = time.Second
		pod := b.waitingPod("p", nil)
		b.run(2)
		node := b.join(b.start(), nil)
		b.run(10)
		pod.Spec.NodeName = node.Name
		if b.run(10); len(b.slurm.cancelled) != 0 || len(b.held) != 0 {
			t.Errorf("%d cancelled, %d held, want the pod to use the node", len(b.slurm.cancelled), len(b.held))
		}
		_ = b.view.podStore.Delete(pod)
		if b.run(5); len(b.slurm.cancelled) != 1 {
			t.Errorf("%d cancelled, want the idle pilot to leave", len(b.slurm.cancelled))
		}
	})
}
