package workload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// stage is a step in the life of a pod before its containers run. A pod that has
// reached a stage has left the troubles of earlier ones behind.
type stage int

const (
	stageScheduling stage = iota // the scheduler looks for a node
	stageVolumes                 // the kubelet mounts the volumes
	stageSandbox                 // containerd makes the sandbox
	stageContainers              // images are pulled, containers created and started
	stageRunning
)

// effect says when a trouble ends the run.
type effect int

const (
	// certain troubles end it after their timeout, whatever else goes on.
	certain effect = iota
	// mendable troubles may be mended by a server of the workload, an operator
	// for example: the clock does not run while one is starting.
	mendable
	// crowded troubles pass when pods end: the clock does not run while a pod is
	// left that ends by itself.
	crowded
	// reported troubles are reported and end nothing.
	reported
)

// Timeouts for troubles that may pass by themselves, each well below the 30 s
// within which a workload that can never start ends the run.
const (
	noTimeout    = 0
	idleTimeout  = 5 * time.Second  // nothing runs that could make room
	pullTimeout  = 12 * time.Second // the kubelet has tried twice by then
	otherTimeout = 20 * time.Second
	// nodeTimeout is for a cluster that has no node yet: that is not the pod's
	// fault, and a node that never comes ends the run for its own reason.
	nodeTimeout = time.Minute
	// serverTimeout is for a server on its way, which pulls its image perhaps.
	serverTimeout = 2 * time.Minute
	// successorTimeout is for a pod that was made successorAge or more after one
	// of its controller had started: a registry may be away for a moment in the
	// nineteenth hour of a job.
	successorTimeout = 5 * time.Minute
	successorAge     = time.Minute
	// unrepeatedTimeout is for troubles with passingWords that are not repeated.
	// The kubelet tries again after 0.5, 1, 2, 4, 8, ... s, or 10 to 15 s, but
	// client-go drops events of a pod beyond 25.
	unrepeatedTimeout = time.Minute
	// unseenTimeout is for an event whose pod has not been seen.
	unseenTimeout = time.Minute
)

// class names troubles that are the same to a user: a change between reasons of
// one class does not restart the clock.
type class string

const (
	classNodes    class = "no nodes"
	classTaint    class = "taint"
	classCapacity class = "capacity"
	classNeeds    class = "needs" // claims, selectors
	classGate     class = "gate"
	classVolumes  class = "volumes"
	classSandbox  class = "sandbox"
	classPull     class = "pull"
	classConfig   class = "configuration"
	classCreate   class = "create"
	classProgram  class = "program"
	classCrash    class = "crash"
	classCreation class = "creation" // a controller creates no pod
	classRejected class = "rejected" // by the kubelet
)

// kind is a row of the tables of reasons.
type kind struct {
	class   class
	effect  effect
	timeout time.Duration
}

// waitingReasons maps the reasons of waiting containers in kubelet v1.36:
// pkg/kubelet/images/types.go, pkg/kubelet/container/sync_result.go,
// pkg/kubelet/kuberuntime/kuberuntime_container.go and the CRI's errors. A test
// holds the table against those files.
var waitingReasons = map[string]kind{
	"ErrImageNeverPull":         {classPull, certain, noTimeout},
	"InvalidImageName":          {classPull, certain, noTimeout},
	"ErrImagePull":              {classPull, certain, pullTimeout},
	"ImagePullBackOff":          {classPull, certain, pullTimeout},
	"ImageInspectError":         {classPull, certain, otherTimeout},
	"RegistryUnavailable":       {classPull, certain, pullTimeout},
	"SignatureValidationFailed": {classPull, certain, pullTimeout},

	"CreateContainerConfigError": {classConfig, mendable, otherTimeout},
	"CreateContainerError":       {classCreate, certain, otherTimeout},
	"PreCreateHookError":         {classCreate, certain, otherTimeout},
	"PreStartHookError":          {classCreate, certain, otherTimeout},
	"RunContainerError":          {classCreate, certain, otherTimeout},

	"RROUnsupported":         {classCreate, certain, otherTimeout},
	"ImageVolumeMountFailed": {classCreate, certain, otherTimeout},

	// The program ran and failed, or its hook did: it may do better next time.
	"PostStartHookError": {classCrash, reported, otherTimeout},
	"CrashLoopBackOff":   {classCrash, reported, otherTimeout},
}

// eventKind is a row of the table of the kubelet's events on pods. The stage is
// what the event proves that the pod has reached.
type eventKind struct {
	stage stage
	// trouble is the zero value for an event that only reports progress.
	trouble kind
}

// podEvents are the reasons of pkg/kubelet/events/event.go in kubelet v1.36 that
// pods get before they run. Troubles with containers are read from the status
// instead, which is always the current one.
var podEvents = map[string]eventKind{
	"FailedNodeDeclaredFeaturesCheck": {stageVolumes, kind{classVolumes, certain, otherTimeout}},
	"NetworkNotReady":                 {stageVolumes, kind{classSandbox, certain, otherTimeout}},
	"FailedCreatePodContainer":        {stageVolumes, kind{classSandbox, certain, otherTimeout}},
	"FailedAttachVolume":              {stageVolumes, kind{classVolumes, mendable, otherTimeout}},
	"FailedMount":                     {stageVolumes, kind{classVolumes, mendable, otherTimeout}},
	"FailedMapVolume":                 {stageVolumes, kind{classVolumes, mendable, otherTimeout}},

	"FailedPrepareDynamicResources": {stageSandbox, kind{classSandbox, mendable, otherTimeout}},
	"FailedCreatePodSandBox":        {stageSandbox, kind{classSandbox, certain, otherTimeout}},
	"FailedPodSandBoxStatus":        {stageSandbox, kind{classSandbox, certain, otherTimeout}},
	"SandboxChanged":                {stage: stageSandbox},

	"Pulling":             {stage: stageContainers},
	"Pulled":              {stage: stageContainers},
	"Created":             {stage: stageContainers},
	"Started":             {stage: stageContainers},
	"BackOff":             {stage: stageContainers},
	"InspectFailed":       {stage: stageContainers},
	"ErrImageNeverPull":   {stage: stageContainers},
	"FailedPostStartHook": {stage: stageContainers},
	"Unhealthy":           {stage: stageContainers},
}

// failedEvent is the reason of several events: about the pod's directories, and
// about images and containers.
const failedEvent = "Failed"

// findPodEvent returns the row of an event on a pod.
func findPodEvent(event *corev1.Event) (eventKind, bool) {
	if event.Reason != failedEvent {
		row, ok := podEvents[event.Reason]
		return row, ok
	}
	if strings.HasPrefix(event.Message, "error making pod data directories") {
		return eventKind{stageVolumes, kind{classVolumes, certain, otherTimeout}}, true
	}
	return eventKind{stage: stageContainers}, true
}

// creationEvents are the events of controllers that create no pod:
// pkg/controller/controller_utils.go, the stateful_pod_control.go of StatefulSets,
// and deployment/util/deployment_util.go.
var creationEvents = map[string]bool{"FailedCreate": true, "ReplicaSetCreateError": true}

// capacityReasons are the scheduler's words for a pod that may start when others have
// ended, or with them. Other plugins report what is missing.
var capacityReasons = []string{
	"Insufficient ", "Too many pods",
	"node(s) didn't have free ports for the requested pod ports",
	"node(s) didn't satisfy existing pods anti-affinity rules",
	"node(s) didn't match pod affinity rules",
	"node(s) didn't match pod anti-affinity rules",
	"node(s) didn't match pod topology spread constraints",
	"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
	"node(s) had no available disk",
	"node(s) exceed max volume count",
	"node(s) were unschedulable",
}

// rejections are the kubelet's reasons for pods that it refuses and that it would
// refuse again; with others, such as OutOfcpu, the next pod may have more luck.
var rejections = map[string]bool{
	"SysctlForbidden": true, "AppArmor": true, "PodOSNotSupported": true, "PodOSSelectorNodeLabelDoesNotMatch": true,
	"PodFeatureUnsupported": true, "PodLevelResourcesNotSupported": true, "SupplementalGroupsPolicyNotSupported": true,
	"InitContainerRestartPolicyForbidden": true,
}

// trouble is why a pod waits.
type trouble struct {
	kind
	stage stage
	err   *NeverStarts
	// tainted: a taint keeps the pod away that it does not tolerate.
	tainted bool
	// tooLarge: the pod would not fit on an empty node either.
	tooLarge bool
	// needsPod: only another pod could bring what is missing, so that without one
	// there is nothing to wait for.
	needsPod bool
}

// diagnosis finds the trouble of a pod by what Kubernetes reports.
type diagnosis struct {
	noPull bool
	// ids describes the node's user and group IDs, such as "0 to 65536". It is
	// empty if unknown.
	ids string
}

// newTrouble returns the trouble of a row, as its message shows it.
func (d diagnosis) newTrouble(row kind, reached stage, object, reason, message string) *trouble {
	t := &trouble{kind: row, stage: reached, err: d.neverStarts(object, reason, message)}
	if says(message, outOfRange) || says(message, kernelRefuses) {
		t.effect, t.timeout = certain, noTimeout
	}
	t.needsPod = row.class == classNeeds && row.effect == mendable || says(message, onlyPodsBring)
	return t
}

// kernelRefuses are runc's words for a value that the kernel will not take the next
// time either.
const kernelRefuses = "failed to write sysctl"

// passingWords are the words of troubles of a busy node, which the next attempt may
// not have.
const passingWords = "timed out|context deadline exceeded|failed to sync|not registered|connection refused|is reserved for"

// onlyPodsBring are the words about what no controller of Kubernetes creates a
// moment later: another pod may.
const onlyPodsBring = "hostPath type check failed: |no PriorityClass with name|RuntimeClass & not found"

// stageOf returns how far a pod has come by its status.
func stageOf(pod *corev1.Pod) stage {
	if pod.Status.Phase == corev1.PodRunning {
		return stageRunning
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReadyToStartContainers && condition.Status == corev1.ConditionTrue {
			return stageContainers
		}
	}
	if pod.Spec.NodeName != "" {
		return stageVolumes
	}
	return stageScheduling
}

// troubleOf returns why a pod waits by its status, nil if that does not say it.
func (d diagnosis) troubleOf(pod *corev1.Pod) *trouble {
	if t := d.containerTrouble(pod); t != nil || stageOf(pod) != stageScheduling {
		return t
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return d.schedulingTrouble(pod, condition.Reason, condition.Message)
		}
	}
	return nil
}

func (d diagnosis) schedulingTrouble(pod *corev1.Pod, reason, message string) *trouble {
	row := kind{classNeeds, mendable, otherTimeout}
	switch {
	case reason == corev1.PodReasonSchedulingGated:
		row = kind{classGate, reported, otherTimeout}
	case reason == corev1.PodReasonSchedulerError:
		row.effect = certain
	case reason != corev1.PodReasonUnschedulable:
		return nil
	case strings.Contains(message, "no nodes available to schedule pods"):
		row = kind{classNodes, certain, nodeTimeout}
	case isTainted(message):
		row = kind{classTaint, crowded, otherTimeout}
	case slices.ContainsFunc(capacityReasons, func(words string) bool { return strings.Contains(message, words) }):
		row = kind{classCapacity, crowded, idleTimeout}
	}
	t := d.newTrouble(row, stageScheduling, "pod "+pod.Name, reason, message)
	t.tainted, t.tooLarge = row.class == classTaint, row.class == classCapacity && isTooLarge(message)
	return t
}

// containerTrouble returns why a container cannot be started.
func (d diagnosis) containerTrouble(pod *corev1.Pod) *trouble {
	for _, status := range pod.Status.InitContainerStatuses {
		if t := d.troubleOfContainer(pod, &status, true); t != nil {
			return t
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if t := d.troubleOfContainer(pod, &status, false); t != nil {
			return t
		}
	}
	return nil
}

func (d diagnosis) troubleOfContainer(pod *corev1.Pod, status *corev1.ContainerStatus, init bool) *trouble {
	name := "pod " + pod.Name
	if failed := startError(status); failed != nil {
		if what := missingProgram(failed.Message); what != "" {
			return d.newTrouble(kind{classProgram, certain, pullTimeout}, stageContainers, name, failed.Reason,
				fmt.Sprintf("container %s: image %s %s", status.Name, imageOf(pod, status), what))
		}
		return d.newTrouble(kind{classCreate, certain, otherTimeout}, stageContainers, name, failed.Reason,
			fmt.Sprintf("container %s: %s", status.Name, plain(failed.Message)))
	}
	waiting := status.State.Waiting
	if waiting == nil {
		return nil
	}
	row, ok := waitingReasons[waiting.Reason]
	if !ok || row.class == classCrash && !init {
		return nil // the log of a container that ran says more
	}
	t := d.newTrouble(row, stageContainers, name, waiting.Reason, fmt.Sprintf("container %s: %s", status.Name, plain(waiting.Message)))
	if row.class == classPull && (d.noPull || podRemedy(waiting.Message) != "") {
		t.timeout = noTimeout
	}
	if isPull(waiting.Reason) && d.noPull {
		t.err.Remedy = "no archive holds this image under this name: give it as one (--image FILE or --image NAME=FILE), or omit --no-pull"
	}
	return t
}

// imageOf returns the image of a container under the name that the manifest has
// for it.
func imageOf(pod *corev1.Pod, status *corev1.ContainerStatus) string {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if container.Name == status.Name {
			return container.Image
		}
	}
	return status.Image
}

// startError returns how a container ended that the runtime could not start, as
// long as it is not running.
func startError(status *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	last := status.State.Terminated
	if status.State.Waiting != nil {
		last = status.LastTerminationState.Terminated
	}
	if last != nil && last.Reason == "StartError" {
		return last
	}
	return nil
}

// rejected returns why the kubelet refused a pod, nil if it did not or if another
// pod like this one may be luckier.
func (d diagnosis) rejected(pod *corev1.Pod) *trouble {
	if !rejections[pod.Status.Reason] {
		return nil
	}
	message := strings.TrimPrefix(pod.Status.Message, "Pod was rejected: ")
	return d.newTrouble(kind{classRejected, certain, pullTimeout}, stageContainers, "pod "+pod.Name, pod.Status.Reason, message)
}

// isTooLarge reads the scheduler's message: for a pod that only lacks room, it
// counts the nodes where others could make some. Devices are left out: their
// plugin may come with the workload and add them to the node.
func isTooLarge(message string) bool {
	return strings.Contains(message, "Preemption is not helpful") &&
		(strings.Contains(message, "Insufficient cpu") || strings.Contains(message, "Insufficient memory"))
}

func isPull(reason string) bool { return reason == "ErrImagePull" || reason == "ImagePullBackOff" }
