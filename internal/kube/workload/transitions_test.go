package workload

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestEveryReasonAfterEveryOther(t *testing.T) {
	start := time.Unix(1000, 0)
	pairs := 0
	for _, owner := range owners {
		for _, a := range signalsOf(owner) {
			for _, b := range signalsOf(owner) {
				if !b.follows(a, owner) {
					continue
				}
				pairs++
				t.Run(owner+"/"+a.reason+","+string(a.kind.class)+"/"+b.reason+","+string(b.kind.class), func(t *testing.T) {
					c := &scene{s: stuckOwner(owner), owner: owner}
					first := c.send(a, start)
					second := c.send(b, first.Add(3*time.Second))
					last, since := decides(a, b, owner, first, second)
					last.check(t, c.s, owner, since)

					if owner == "Pod" && c.pod == "" {
						return // the pod has failed
					}
					running := creatingPod(owner)
					running.Status.Phase = corev1.PodRunning
					running.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
					c.handle(running, second)
					if err := c.s.overdue(second.Add(time.Hour)); err != nil || len(c.s.takeReports()) > 0 {
						t.Errorf("a pod that runs is called stuck: %v", err)
					}
					if b.event || b.other == creation {
						c.send(b, second.Add(time.Hour))
						if err := c.s.overdue(second.Add(2 * time.Hour)); err != nil {
							t.Errorf("an event ends a pod that runs: %v", err)
						}
					}
				})
			}
		}
	}
	t.Logf("%d ordered pairs", pairs)
}

// TestJobIsSuspendedTwice: the controller deletes the pods of the job, which take
// some time to end.
func TestJobIsSuspendedTwice(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	pod := creatingPod("Job")
	pod.Status.Phase = corev1.PodRunning
	s.handlePod(pod, start)
	s.watchJob(suspendable(true), start)
	deleted := metav1.NewTime(start)
	pod.DeletionTimestamp = &deleted
	s.handlePod(pod, start.Add(time.Second))
	s.forget(pod.UID, start.Add(2*time.Second))
	err := s.overdue(start.Add(time.Hour))
	if notes := strings.Join(s.takeReports(), "\n"); err != nil || notes != "job x waits: JobSuspended: the job is suspended; it starts when spec.suspend becomes false" {
		t.Errorf("%v, notes %q", err, notes)
	}
	s.watchJob(suspendable(false), start.Add(time.Hour))
	if err := s.overdue(start.Add(2 * time.Hour)); err != nil || len(s.takeReports()) > 0 {
		t.Errorf("a job that goes on: %v", err)
	}
}

// TestAnotherNodeAcceptsPod: the kubelet of one node has refused it.
func TestAnotherNodeAcceptsPod(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, owner := range owners[1:] {
		c := &scene{s: stuckOwner(owner), owner: owner}
		refused := signal{reason: "AppArmor", other: rejection, message: "words"}
		c.send(refused, start)
		pulling := creatingPod(owner)
		pulling.Status.StartTime = &metav1.Time{Time: start}
		c.handle(pulling, start.Add(time.Second))
		if err := c.s.overdue(start.Add(time.Hour)); err != nil {
			t.Errorf("%s: ends the run while an accepted pod starts: %v", owner, err)
		}
		c.s.forget(c.pod, start.Add(time.Hour))
		if err := c.s.overdue(start.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "AppArmor") {
			t.Errorf("%s: %v, want the refusal", owner, err)
		}
	}
}

// TestEventArrivesBeforeItsPod: the watches of pods and events are not
// synchronized.
func TestEventArrivesBeforeItsPod(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, owner := range owners {
		for _, a := range signals() {
			if !a.event {
				continue
			}
			s := stuckOwner(owner)
			a.send(s, owner, start)
			if err := s.overdue(start.Add(30 * time.Second)); err != nil {
				t.Errorf("a pod that is not known to be the workload's ends the run: %v", err)
			}
			s.handlePod(unscheduled(owner), start)
			s.handlePod(creatingPod(owner), start)
			a.check(t, s, owner, start)
		}
	}
}

func unscheduled(owner string) *corev1.Pod {
	return signal{reason: "Unschedulable", message: "no nodes available to schedule pods"}.pod(owner)
}

// TestProgressEndsTrouble: a reason that no longer applies is forgotten, here
// because the pod pulls an image for minutes.
func TestProgressEndsTrouble(t *testing.T) {
	start := time.Unix(1000, 0)
	ready := creatingPod("Pod")
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	for name, progress := range map[string]func(*stuckPods){
		"the sandbox is ready": func(s *stuckPods) { s.handlePod(ready, start.Add(2*time.Second)) },
		"an image is pulled": func(s *stuckPods) {
			signal{reason: "Pulling", event: true}.send(s, "Pod", start.Add(2*time.Second))
		},
	} {
		for _, reason := range []string{"FailedMount", "FailedCreatePodSandBox"} {
			s := stuckOwner("Pod")
			s.handlePod(creatingPod("Pod"), start)
			signal{reason: reason, event: true}.send(s, "Pod", start)
			progress(s)
			// A late event of the old reason.
			signal{reason: "FailedMount", event: true}.send(s, "Pod", start.Add(time.Second))
			if err := s.overdue(start.Add(time.Hour)); err != nil {
				t.Errorf("%s, then %s: %v", reason, name, err)
			}
		}
	}
}

// TestProgressClearsSchedulerMessage: the kubelet has the pod, and the
// scheduler's report arrives late.
func TestProgressClearsSchedulerMessage(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	signal{reason: "Unschedulable", message: "0/1 nodes are available: 1 Insufficient cpu."}.send(s, "Pod", start)
	signal{reason: "Pulling", event: true}.send(s, "Pod", start)
	if err := s.overdue(start.Add(time.Hour)); err != nil {
		t.Error(err)
	}
}

// TestOlderEventDoesNotReplaceLaterOne: a list has events in the order of
// their names.
func TestOlderEventDoesNotReplaceLaterOne(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	s.handlePod(creatingPod("Pod"), start)
	signal{reason: "FailedCreatePodSandBox", event: true, message: "later"}.send(s, "Pod", start.Add(2*time.Second))
	signal{reason: "FailedMount", event: true, message: "earlier"}.send(s, "Pod", start.Add(time.Second))
	if err := s.overdue(start.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "later") {
		t.Error(err)
	}
}

func TestSysctlRefusedByKernel(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	s.handlePod(creatingPod("Job"), start)
	signal{reason: "FailedCreatePodSandBox", event: true, message: `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to start sandbox "5f6a": failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: failed to write sysctl net.ipv4.x = "y": invalid argument`}.send(s, "Job", start)
	const want = `pod a cannot start: FailedCreatePodSandBox: failed to write sysctl net.ipv4.x = "y": invalid argument; correct securityContext.sysctls`
	if err := s.overdue(start); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestIDsMissingOnNodes(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	s.ids = "0 to 65536"
	s.handlePod(creatingPod("Pod"), start)
	signal{reason: "FailedMount", event: true, message: `MountVolume.SetUp failed for volume "kube-api-access" : lchown /token: invalid argument`}.send(s, "Pod", start)
	if err := s.overdue(start); err == nil || !strings.Contains(err.Error(), "ids that the nodes have, 0 to 65536;") {
		t.Errorf("%v, want an end at once, with the range", err)
	}
}

// TestUnrepeatedTroubleGetsMoreTime: a mount failed once and was repaired,
// and the sandbox is slow on a full node.
func TestUnrepeatedTroubleGetsMoreTime(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	s.handlePod(creatingPod("Pod"), start)
	mount := signal{reason: "FailedMount", event: true, message: "failed to sync configmap cache: timed out waiting for the condition"}
	mount.send(s, "Pod", start)
	mount.send(s, "Pod", start.Add(2*time.Second))
	if err := s.overdue(start.Add(unrepeatedTimeout - time.Second)); err != nil {
		t.Error(err)
	}
	if err := s.overdue(start.Add(unrepeatedTimeout)); err == nil {
		t.Error("waits for ever")
	}
	mount.send(s, "Pod", start.Add(15*time.Second))
	if err := s.overdue(start.Add(otherTimeout)); err == nil {
		t.Error("waits although the kubelet has tried again")
	}
}

func TestBlockedReplicaIsReportedWhileAnotherRuns(t *testing.T) {
	start := time.Unix(1000, 0)
	for owner, ends := range map[string]bool{"Job": true, "Deployment": false, "StatefulSet": false, "DaemonSet": false} {
		s := stuckOwner(owner)
		running := creatingPod(owner)
		running.UID, running.Name, running.Status.Phase = "b", "b", corev1.PodRunning
		s.handlePod(running, start)
		signal{reason: "CreateContainerError", stage: stageContainers, message: "words"}.send(s, owner, start)
		err := s.overdue(start.Add(time.Minute))
		if (err != nil) != ends {
			t.Errorf("%s: %v, want an end: %v", owner, err, ends)
		}
		notes := append(s.takeReports(), s.takeReports()...)
		if _ = s.overdue(start.Add(2 * time.Minute)); !ends && (len(notes) != 1 || len(s.takeReports()) != 0) {
			t.Errorf("%s: notes %q, want one, once", owner, notes)
		}
		s.forget("b", start)
		if err := s.overdue(start.Add(2 * time.Minute)); err == nil {
			t.Errorf("%s: waits although no pod runs any more", owner)
		}
	}
}

func TestSuccessorOfRunningPodGetsMoreTime(t *testing.T) {
	start := time.Unix(1000, 0)
	later := start.Add(19 * time.Hour)
	for after, timeout := range map[time.Duration]time.Duration{time.Second: pullTimeout, 19 * time.Hour: successorTimeout} {
		s := stuckOwner("Job")
		first := creatingPod("Job")
		first.UID, first.Status.Phase = "first", corev1.PodRunning
		first.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		s.handlePod(first, later.Add(-after))
		first.Status.Phase = corev1.PodFailed
		s.handlePod(first, later)
		signal{reason: "ErrImagePull", stage: stageContainers, message: "connection refused"}.send(s, "Job", later)
		if err := s.overdue(later.Add(timeout - time.Second)); err != nil {
			t.Errorf("%s after the first: gives up too early: %v", after, err)
		}
		if notes := s.takeReports(); (len(notes) == 1) != (after > successorAge) {
			t.Errorf("%s after the first: notes %q", after, notes)
		}
		if err := s.overdue(later.Add(timeout)); err == nil {
			t.Errorf("%s after the first: waits for ever", after)
		}
	}
}

func TestControllerThatCreatesNoPod(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, owner := range owners[1:] {
		refuse := func(s *stuckPods, now time.Time, reason, message string) {
			object := corev1.ObjectReference{Kind: owner, Namespace: "default", Name: "x", UID: "x"}
			if owner == "Deployment" && reason == "FailedCreate" {
				object = corev1.ObjectReference{Kind: "ReplicaSet", Namespace: "default", Name: "x-5d8f", UID: "x-5d8f"}
			}
			s.handleEvent(&corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message, InvolvedObject: object, LastTimestamp: metav1.NewTime(now)}, now)
		}
		const message = `Error creating: pods "x-" is forbidden: no PriorityClass with name absent was found`
		s := stuckOwner(owner)
		refuse(s, start, "FailedCreate", message)
		if err := s.overdue(start.Add(idleTimeout - time.Second)); err != nil {
			t.Errorf("%s: gives up too early: %v", owner, err)
		}
		err := s.overdue(start.Add(idleTimeout))
		if err == nil || !strings.HasPrefix(err.Error(), strings.ToLower(owner)+" x cannot start: FailedCreate: pods") || !strings.Contains(err.Error(), "create the PriorityClass") {
			t.Errorf("%s: %v", owner, err)
		}
		for _, a := range signals() {
			s := stuckOwner(owner)
			refuse(s, start, "FailedCreate", message)
			if a.event {
				s.handlePod(creatingPod(owner), start)
			}
			a.send(s, owner, start.Add(3*time.Second))
			a.check(t, s, owner, start.Add(3*time.Second))
			refuse(s, start.Add(4*time.Second), "FailedCreate", message)
			if a.kind.effect != reported { // that is said once
				a.check(t, s, owner, start.Add(3*time.Second))
			}
		}
		s = stuckOwner(owner)
		refuse(s, start, "FailedCreate", message)
		refuse(s, start, "SuccessfulCreate", "Created pod: a")
		if err := s.overdue(start.Add(time.Hour)); err != nil {
			t.Errorf("%s: the pod has been created: %v", owner, err)
		}
	}
}

// TestClockStopsWhileServerStarts: an operator may create the missing object
// once it runs.
func TestClockStopsWhileServerStarts(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	signal{reason: "CreateContainerConfigError", stage: stageContainers}.send(s, "Job", start)
	server := creatingPod("Deployment")
	server.Name, server.UID = "operator", types.UID("operator")
	s.updatePod(server, start)
	if err := s.overdue(start.Add(time.Minute)); err != nil {
		t.Errorf("gives up although a server is on its way: %v", err)
	}
	server.Status.Phase = corev1.PodRunning
	s.updatePod(server, start.Add(time.Minute))
	if err := s.overdue(start.Add(time.Minute + 19*time.Second)); err != nil {
		t.Errorf("gives up before the server could do anything: %v", err)
	}
	if err := s.overdue(start.Add(time.Minute + 20*time.Second)); err == nil {
		t.Error("waits for ever")
	}
}

func TestServersNeverFreeCapacity(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	server := creatingPod("Deployment")
	server.Name, server.UID, server.Status.Phase = "server", types.UID("server"), corev1.PodRunning
	s.updatePod(server, start)
	signal{reason: "Unschedulable", message: "Insufficient cpu"}.send(s, "Job", start)
	if err := s.overdue(start.Add(19 * time.Second)); err != nil {
		t.Errorf("gives up too early: %v", err)
	}
	if err := s.overdue(start.Add(21 * time.Second)); err == nil {
		t.Error("waits for ever")
	}
}

// failedStart returns a pod whose program is missing from the image, with
// restartPolicy Never.
func failedStart(owner, uid string) *corev1.Pod {
	pod := ownedPod(owner)
	pod.UID = types.UID(uid)
	pod.Spec.NodeName = "n1"
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "busybox:1.37"}}
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "docker.io/library/busybox:1.37", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: `failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "nothere": executable file not found in $PATH`},
	}}}
	return pod
}

func TestProgramMissingFromImage(t *testing.T) {
	start := time.Unix(1000, 0)
	const want = `pod a cannot start: StartError: container main: image busybox:1.37 has no program "nothere" in its PATH; correct the container's command, or use an image that has the program`

	s := stuckOwner("Pod")
	s.handlePod(failedStart("Pod", "a"), start)
	if err := s.overdue(start); !s.givesUp("a") || err == nil || err.Error() != want {
		t.Errorf("a pod: %v, want %s", err, want)
	}

	s = stuckOwner("Job")
	s.handlePod(failedStart("Job", "a"), start)
	if err := s.overdue(start.Add(11 * time.Second)); err != nil {
		t.Errorf("a job gives up before the second attempt: %v", err)
	}
	s.handlePod(failedStart("Job", "b"), start.Add(11*time.Second))
	if err := s.overdue(start.Add(12 * time.Second)); err == nil || err.Error() != want {
		t.Errorf("a job: %v, want %s", err, want)
	}

	s = stuckOwner("Job")
	s.handlePod(failedStart("Job", "a"), start)
	if err := s.overdue(start); !s.givesUp("x") || err != nil {
		t.Errorf("a job that has no further attempt: %v", err)
	}
	if err := s.overdue(start); err == nil || err.Error() != want {
		t.Errorf("a job that has no further attempt: %v, want %s", err, want)
	}

	s.handlePod(failedStart("Job", "a"), start)
	second := creatingPod("Job")
	second.UID, second.Status.Phase = "b", corev1.PodRunning
	second.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	s.handlePod(second, start)
	s.handlePod(failedStart("Job", "c"), start)
	if err := s.overdue(start.Add(time.Hour)); err != nil {
		t.Errorf("a job of which a pod could start: %v", err)
	}
}
