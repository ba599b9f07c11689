package interlink

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/test/interlink/virtualnode"
)

func terminated(code int32, reason string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: metav1.Unix(1700000000, 0)}}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(1700000000, 0)}}
}

// TestReport checks that the virtual node derives the phase of the local pod, and that
// the state of the first container contains the reason.
func TestReport(t *testing.T) {
	always, never := corev1.RestartPolicyAlways, corev1.RestartPolicyNever
	sidecar := corev1.ContainerRestartPolicyAlways
	type state = corev1.ContainerState
	for name, test := range map[string]struct {
		policy     corev1.RestartPolicy
		phase      corev1.PodPhase
		reason     string
		conditions []corev1.PodCondition
		inits      []state
		mains      []state
		sidecar    bool
		want       corev1.PodPhase // if it differs
		says       string
		code       int32
	}{
		"no statuses yet": {phase: corev1.PodPending, mains: []state{{}}, says: "Pending"},
		"unschedulable": {
			phase: corev1.PodPending, mains: []state{{}}, says: "Unschedulable: 0/3 nodes",
			conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"}},
		},
		"image is pulled": {
			phase: corev1.PodPending, mains: []state{waiting("ImagePullBackOff", "no such image")}, says: "ImagePullBackOff: no such image",
			conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		},
		"running":                    {phase: corev1.PodRunning, mains: []state{running(), terminated(0, "Completed")}},
		"succeeded":                  {policy: never, phase: corev1.PodSucceeded, mains: []state{terminated(0, "Completed")}},
		"failed":                     {policy: never, phase: corev1.PodFailed, mains: []state{terminated(42, "Error")}, code: 42},
		"out of memory":              {policy: never, phase: corev1.PodFailed, mains: []state{terminated(137, "OOMKilled")}, code: 137, says: "OOMKilled"},
		"is restarted":               {policy: always, phase: corev1.PodRunning, mains: []state{terminated(1, "Error")}, want: corev1.PodPending, says: "Restarting: the last exit code was 1"},
		"is restarted after success": {policy: always, phase: corev1.PodRunning, mains: []state{terminated(0, "Completed")}, want: corev1.PodPending, says: "Restarting"},
		"back-off":                   {policy: always, phase: corev1.PodRunning, mains: []state{waiting("CrashLoopBackOff", "back-off 10s")}, want: corev1.PodPending, says: "CrashLoopBackOff"},
		"init runs":                  {policy: never, phase: corev1.PodPending, inits: []state{running(), {}}, mains: []state{{}}},
		"init failed":                {policy: never, phase: corev1.PodFailed, inits: []state{terminated(3, "Error"), {}}, mains: []state{{}}, code: 3, says: "init container init0 failed with exit code 3"},
		"init is restarted":          {policy: always, phase: corev1.PodPending, inits: []state{terminated(3, "Error")}, mains: []state{{}}},
		"init is over":               {policy: always, phase: corev1.PodRunning, inits: []state{terminated(0, "Completed")}, mains: []state{running()}},
		"sidecar":                    {policy: always, phase: corev1.PodRunning, inits: []state{running()}, sidecar: true, mains: []state{running()}},
		"evicted":                    {policy: never, phase: corev1.PodFailed, reason: "Evicted", mains: []state{{}}, code: 137, says: "Evicted: because"},
		"deadline, but exited with 0": {
			policy: never, phase: corev1.PodFailed, reason: "DeadlineExceeded", mains: []state{terminated(0, "Completed")}, code: 137,
			says: "the pod failed, although the container exited with 0: DeadlineExceeded: because",
		},
	} {
		t.Run(name, func(t *testing.T) {
			foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: uid}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: test.policy}, Status: corev1.PodStatus{Phase: test.phase, Conditions: test.conditions}}
			if test.reason != "" {
				pod.Status.Reason, pod.Status.Message = test.reason, "because"
			}
			add := func(kind string, states []state, containers *[]corev1.Container, statuses *[]corev1.ContainerStatus) {
				for i, state := range states {
					container := corev1.Container{Name: kind + string(rune('0'+i)), Image: "busybox"}
					if test.sidecar && kind == "init" {
						container.RestartPolicy = &sidecar
					}
					*containers = append(*containers, container)
					if state != (corev1.ContainerState{}) {
						*statuses = append(*statuses, corev1.ContainerStatus{Name: container.Name, State: state, RestartCount: 2})
					}
				}
			}
			add("init", test.inits, &pod.Spec.InitContainers, &pod.Status.InitContainerStatuses)
			add("main", test.mains, &pod.Spec.Containers, &pod.Status.ContainerStatuses)
			foreign.Spec = pod.Spec
			virtualnode.Begin(foreign)
			reported := report(foreign, pod, "12/x", "no exec")
			if len(reported.Containers) != len(test.mains) {
				t.Fatalf("the containers are %+v", reported.Containers)
			}
			if err := virtualnode.Update(foreign, virtualnode.Status(*reported)); err != nil {
				t.Fatal(err)
			}
			want := test.phase
			if test.want != "" {
				want = test.want
			}
			if foreign.Status.Phase != want {
				t.Errorf("the virtual node's phase is %s, not %s: %+v", foreign.Status.Phase, want, reported)
			}
			first := reported.Containers[0].State
			text := ""
			switch {
			case first.Waiting != nil:
				text = first.Waiting.Reason + ": " + first.Waiting.Message
				if first.Waiting.Reason != "Restarting" && !strings.HasSuffix(text, "no exec") {
					t.Errorf("%q does not say what is not possible", text)
				}
			case first.Terminated != nil:
				text = first.Terminated.Message
				if first.Terminated.ExitCode != test.code {
					t.Errorf("the exit code is %d, not %d", first.Terminated.ExitCode, test.code)
				}
			}
			if !strings.Contains(text, test.says) {
				t.Errorf("the state says %q, not %q", text, test.says)
			}
			if test.mains[0] != (state{}) && reported.Containers[0].RestartCount != 2 {
				t.Errorf("the number of restarts is %d", reported.Containers[0].RestartCount)
			}
		})
	}
}

// TestLost checks that a running container keeps its start time, and a terminated one its
// state.
func TestLost(t *testing.T) {
	foreign := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: uid},
		Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}, {Name: "c"}}},
		Status: corev1.PodStatus{
			Phase:                 corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: terminated(0, "Completed")}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: "a", State: running(), RestartCount: 1}, {Name: "b", State: terminated(0, "Completed")}},
		},
	}
	status := lost(foreign, "12/x", "job 12 has ended (TIMEOUT)")
	a, b, c := status.Containers[0], status.Containers[1].State.Terminated, status.Containers[2].State.Terminated
	if a.State.Terminated.StartedAt.Unix() != 1700000000 || a.State.Terminated.ExitCode != killed || a.RestartCount != 1 {
		t.Errorf("the running container became %+v", a)
	}
	if b.ExitCode != 0 || status.InitContainers[0].State.Terminated.ExitCode != 0 {
		t.Errorf("ended containers became %+v", status)
	}
	if c.Message != "job 12 has ended (TIMEOUT)" || c.FinishedAt.IsZero() {
		t.Errorf("the waiting container became %+v", c)
	}
	if err := virtualnode.Update(foreign, virtualnode.Status(*status)); err != nil || foreign.Status.Phase != corev1.PodFailed {
		t.Errorf("the phase is %s, %v", foreign.Status.Phase, err)
	}
}
