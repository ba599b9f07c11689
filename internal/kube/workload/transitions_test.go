package workload

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// signal is a reason why a pod waits, as the API server reports it.
type signal struct {
	reason string
	stage  stage
	// event distinguishes an event of the pod from a reason in its status.
	event bool
	// message distinguishes signals of the same reason.
	message string
	kind    kind
}

// signals returns one signal for each row of the tables.
func signals() []signal {
	var all []signal
	for reason, row := range waitingReasons {
		all = append(all, signal{reason: reason, stage: stageContainers, kind: row, message: "words of " + reason})
	}
	for reason, row := range podEvents {
		if row.trouble.class != "" {
			all = append(all, signal{reason: reason, stage: row.stage, event: true, kind: row.trouble, message: "words of " + reason})
		}
	}
	all = append(all,
		signal{reason: "StartError", stage: stageContainers, kind: kind{classProgram, certain, pullTimeout}, message: `exec: "nothere": executable file not found in $PATH`},
		signal{reason: "StartError", stage: stageContainers, kind: kind{classCreate, certain, otherTimeout}, message: "container init was OOM-killed"},
		signal{reason: "Unschedulable", kind: kind{classNodes, certain, nodeTimeout}, message: "no nodes available to schedule pods"},
		signal{reason: "Unschedulable", kind: kind{classTaint, crowded, otherTimeout}, message: taintedMessage},
		signal{reason: "Unschedulable", kind: kind{classRoom, crowded, idleTimeout}, message: "0/1 nodes are available: 1 Insufficient cpu."},
		signal{reason: "Unschedulable", kind: kind{classNeeds, mendable, idleTimeout}, message: `0/1 nodes are available: persistentvolumeclaim "absent" not found.`},
		signal{reason: "SchedulingGated", kind: kind{classGate, reported, otherTimeout}, message: "Scheduling is blocked due to non-empty scheduling gates"},
		signal{reason: "SchedulerError", kind: kind{classNeeds, certain, otherTimeout}, message: "binding rejected"},
	)
	slices.SortFunc(all, func(a, b signal) int { return strings.Compare(a.reason+a.message, b.reason+b.message) })
	return all
}

// ownedPod returns a pod as its kind of owner creates it, without a status.
func ownedPod(owner string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "a"}}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	controller := true
	switch owner {
	case "Pod", "Job":
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	switch owner {
	case "Pod":
	case "Deployment":
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "x-5d8f", UID: "x-5d8f", Controller: &controller}}
	default:
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "x", UID: "x", Controller: &controller}}
	}
	pod.Status.Phase = corev1.PodPending
	return pod
}

// stuckOwner returns the state for a workload of one such owner.
func stuckOwner(owner string) *stuckPods {
	s := newStuckPods(false)
	if owner != "Pod" {
		object := &unstructured.Unstructured{Object: map[string]any{"kind": owner}}
		object.SetName("x")
		object.SetNamespace("default")
		object.SetUID("x")
		s.expect([]*target{{object: Object{Unstructured: object}}})
	}
	return s
}

// pod returns the state of the pod that carries the signal in its status.
func (a signal) pod(owner string) *corev1.Pod {
	pod := ownedPod(owner)
	if a.stage == stageScheduling {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: a.reason, Message: a.message}}
		return pod
	}
	pod.Spec.NodeName = "n1"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	status := corev1.ContainerStatus{Name: "main", Image: "i", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: a.reason, Message: a.message}}}
	if a.reason == "StartError" {
		status.State.Waiting.Reason = "CrashLoopBackOff"
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: a.reason, Message: a.message, ExitCode: 128}
	}
	if a.kind.class == classCrash {
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
	} else {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	}
	return pod
}

func (a signal) send(s *stuckPods, owner string, now time.Time) {
	if !a.event {
		s.handlePod(a.pod(owner), now)
		return
	}
	s.handleEvent(&corev1.Event{
		Type: corev1.EventTypeWarning, Reason: a.reason, Message: a.message, LastTimestamp: metav1.NewTime(now.Truncate(time.Second)),
		Source:         corev1.EventSource{Component: "kubelet"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "a", UID: "a"},
	}, now)
}

// creatingPod returns the first state that the kubelet reports of a pod.
func creatingPod(owner string) *corev1.Pod {
	pod := ownedPod(owner)
	pod.Spec.NodeName = "n1"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
	return pod
}

// supersedes reports whether b, received after a, is the reason that the pod does
// not start.
func (b signal) supersedes(a signal) bool {
	switch {
	case !b.event && b.stage == stageScheduling && a.event:
		return false // the scheduler's report is old: the kubelet has the pod
	case b.event && b.stage == stageVolumes && !a.event && a.stage == stageContainers:
		return false // volumes are mounted again and again
	}
	return true
}

var owners = []string{"Pod", "Job", "Deployment", "StatefulSet", "DaemonSet"}

// check checks the state just before the signal's timeout and just after it.
func (a signal) check(t *testing.T, s *stuckPods, since time.Time) {
	t.Helper()
	if a.kind.timeout > 0 {
		if err := s.overdue(since.Add(a.kind.timeout - time.Millisecond)); err != nil {
			t.Errorf("gives up too early: %v", err)
		}
	}
	s.takeNotes()
	err := s.overdue(since.Add(a.kind.timeout + time.Millisecond))
	said := strings.Join(s.takeNotes(), "\n")
	if a.kind.effect == reported {
		if err != nil || !strings.HasPrefix(said, "pod a waits: "+a.reason+": ") {
			t.Errorf("%v, notes %q; want a note of %s", err, said, a.reason)
		}
		return
	}
	var never *NeverStarts
	if !errors.As(err, &never) || never.Reason != a.reason || never.Object != "pod a" || never.Remedy == "" || said != "" {
		t.Errorf("%v, notes %q; want an error with %s and a remedy", err, said, a.reason)
	}
}

func TestEveryReasonAfterEveryOther(t *testing.T) {
	start := time.Unix(1000, 0)
	second := start.Add(3 * time.Second)
	pairs := 0
	for _, owner := range owners {
		for _, a := range signals() {
			for _, b := range signals() {
				if !a.event && a.stage == stageContainers && !b.event && b.stage == stageScheduling {
					continue // a pod keeps its node
				}
				pairs++
				t.Run(owner+"/"+a.reason+","+string(a.kind.class)+"/"+b.reason+","+string(b.kind.class), func(t *testing.T) {
					s := stuckOwner(owner)
					if a.event {
						s.handlePod(creatingPod(owner), start)
					}
					a.send(s, owner, start)
					b.send(s, owner, second)
					last, since := b, second
					if !b.supersedes(a) {
						last, since = a, start
					} else if a.kind.class == b.kind.class {
						since = start // the same reason with another text
					}
					last.check(t, s, since)

					running := creatingPod(owner)
					running.Status.Phase = corev1.PodRunning
					running.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
					s.handlePod(running, second)
					if err := s.overdue(second.Add(time.Hour)); err != nil || len(s.takeNotes()) > 0 {
						t.Errorf("a pod that runs is called stuck: %v", err)
					}
					if b.event {
						b.send(s, owner, second.Add(time.Hour))
						if err := s.overdue(second.Add(2 * time.Hour)); err != nil {
							t.Errorf("an event ends a pod that runs: %v", err)
						}
					}
				})
			}
		}
	}
	t.Logf("%d ordered pairs", pairs)
}

// TestAnEventMayArriveBeforeItsPod: the watches of pods and events are not
// synchronized.
func TestAnEventMayArriveBeforeItsPod(t *testing.T) {
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
			a.check(t, s, start)
		}
	}
}

func unscheduled(owner string) *corev1.Pod {
	return signal{reason: "Unschedulable", message: "no nodes available to schedule pods"}.pod(owner)
}

// TestProgressEndsATrouble: a reason that no longer applies is forgotten, here
// because the pod pulls an image for minutes.
func TestProgressEndsATrouble(t *testing.T) {
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

// TestProgressClearsTheSchedulersMessage: the kubelet has the pod, and the
// scheduler's report arrives late.
func TestProgressClearsTheSchedulersMessage(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	signal{reason: "Unschedulable", message: "0/1 nodes are available: 1 Insufficient cpu."}.send(s, "Pod", start)
	signal{reason: "Pulling", event: true}.send(s, "Pod", start)
	if err := s.overdue(start.Add(time.Hour)); err != nil {
		t.Error(err)
	}
}

// TestAnOlderEventDoesNotSupersedeALaterOne: a list has events in the order of
// their names.
func TestAnOlderEventDoesNotSupersedeALaterOne(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	s.handlePod(creatingPod("Pod"), start)
	signal{reason: "FailedCreatePodSandBox", event: true, message: "later"}.send(s, "Pod", start.Add(2*time.Second))
	signal{reason: "FailedMount", event: true, message: "earlier"}.send(s, "Pod", start.Add(time.Second))
	if err := s.overdue(start.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "later") {
		t.Error(err)
	}
}

func TestASysctlThatTheKernelRefuses(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	s.handlePod(creatingPod("Job"), start)
	signal{reason: "FailedCreatePodSandBox", event: true, message: `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to start sandbox "5f6a": failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: failed to write sysctl net.ipv4.x = "y": invalid argument`}.send(s, "Job", start)
	const want = `pod a cannot start: FailedCreatePodSandBox: failed to write sysctl net.ipv4.x = "y": invalid argument; correct securityContext.sysctls`
	if err := s.overdue(start); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestIdsThatTheNodesLack(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Pod")
	s.ids = "0 to 65536"
	s.handlePod(creatingPod("Pod"), start)
	signal{reason: "FailedMount", event: true, message: `MountVolume.SetUp failed for volume "kube-api-access" : lchown /token: invalid argument`}.send(s, "Pod", start)
	if err := s.overdue(start); err == nil || !strings.Contains(err.Error(), "ids that the nodes have, 0 to 65536;") {
		t.Errorf("%v, want an end at once, with the range", err)
	}
}

// TestATroubleThatIsNotRepeatedGetsMoreTime: a mount failed once and was repaired,
// and the sandbox is slow on a full node.
func TestATroubleThatIsNotRepeatedGetsMoreTime(t *testing.T) {
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

func TestAReplicaThatCannotStartIsReportedWhileAnotherRuns(t *testing.T) {
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
		notes := append(s.takeNotes(), s.takeNotes()...)
		if _ = s.overdue(start.Add(2 * time.Minute)); !ends && (len(notes) != 1 || len(s.takeNotes()) != 0) {
			t.Errorf("%s: notes %q, want one, once", owner, notes)
		}
		s.forget("b", start)
		if err := s.overdue(start.Add(2 * time.Minute)); err == nil {
			t.Errorf("%s: waits although no pod runs any more", owner)
		}
	}
}

func TestAPodThatComesAfterOneThatRanGetsMoreTime(t *testing.T) {
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
		if notes := s.takeNotes(); (len(notes) == 1) != (after > successorAge) {
			t.Errorf("%s after the first: notes %q", after, notes)
		}
		if err := s.overdue(later.Add(timeout)); err == nil {
			t.Errorf("%s after the first: waits for ever", after)
		}
	}
}

func TestAControllerThatCreatesNoPod(t *testing.T) {
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
			a.check(t, s, start.Add(3*time.Second))
			refuse(s, start.Add(4*time.Second), "FailedCreate", message)
			if a.kind.effect != reported { // that is said once
				a.check(t, s, start.Add(3*time.Second))
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

// TestTheClockStandsWhileAServerStarts: an operator may create the missing object
// once it runs.
func TestTheClockStandsWhileAServerStarts(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	signal{reason: "CreateContainerConfigError", stage: stageContainers}.send(s, "Job", start)
	server := creatingPod("Deployment")
	server.Name, server.UID = "operator", types.UID("operator")
	s.notePod(server, start)
	if err := s.overdue(start.Add(time.Minute)); err != nil {
		t.Errorf("gives up although a server is on its way: %v", err)
	}
	server.Status.Phase = corev1.PodRunning
	s.notePod(server, start.Add(time.Minute))
	if err := s.overdue(start.Add(time.Minute + 19*time.Second)); err != nil {
		t.Errorf("gives up before the server could do anything: %v", err)
	}
	if err := s.overdue(start.Add(time.Minute + 20*time.Second)); err == nil {
		t.Error("waits for ever")
	}
}

func TestServersMakeNoRoom(t *testing.T) {
	start := time.Unix(1000, 0)
	s := stuckOwner("Job")
	server := creatingPod("Deployment")
	server.Name, server.UID, server.Status.Phase = "server", types.UID("server"), corev1.PodRunning
	s.notePod(server, start)
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

func TestAProgramThatIsNotInTheImage(t *testing.T) {
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
