package workload

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/base/cluster"
)

// stage is a step in the life of a pod before its containers run. When a pod reaches a
// stage, troubles of earlier stages are over.
type stage int

const (
	stageScheduling stage = iota // the scheduler looks for a node
	stageVolumes                 // the kubelet mounts the volumes
	stageSandbox                 // containerd makes the sandbox
	stageContainers              // images are pulled, containers created and started
	stageRunning
)

// effect defines when a trouble ends the run.
type effect int

const (
	// certain troubles end the run after their timeout, in any case.
	certain effect = iota
	// mendable troubles may be mended by a server of the workload, for example an
	// operator. Their timeout does not run while a server is starting.
	mendable
	// crowded troubles pass when other pods end. Their timeout does not run while
	// there is a pod that will finish.
	crowded
	// reported troubles are reported to the user, and do not end the run.
	reported
)

// Timeouts for troubles that may pass by themselves. A workload that can never start
// ends the run within 30 s, so most of them are well below that.
const (
	noTimeout    = 0                // the trouble ends the run at once
	idleTimeout  = 5 * time.Second  // no running pod could make room
	pullTimeout  = 12 * time.Second // the kubelet has tried twice by then
	otherTimeout = 20 * time.Second
	// nodeTimeout applies while the cluster has no node yet. This is no fault of the
	// pod, and a missing node ends the run with its own error.
	nodeTimeout = time.Minute
	// serverTimeout applies to a server that is starting, and may pull its image.
	serverTimeout = 2 * time.Minute
	// successorTimeout applies to a pod that was created successorAge or more after
	// the first pod of its controller had started. In a job of many hours, a registry
	// may be unavailable for a moment.
	successorTimeout = 5 * time.Minute
	successorAge     = time.Minute
	// unrepeatedTimeout applies if the message contains passingWords and was not
	// repeated. The kubelet tries again after 0.5, 1, 2, 4, 8, ... s, or 10 to 15 s,
	// but client-go drops the events of a pod after the first 25.
	unrepeatedTimeout = time.Minute
	// unseenTimeout applies to an event whose pod has not been seen.
	unseenTimeout = time.Minute
)

// class is a group of reasons that mean the same to a user. A change between reasons
// of one class does not restart the timeout.
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
// compares the table with these files.
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

	// The program or its hook has failed, but may succeed next time.
	"PostStartHookError": {classCrash, reported, otherTimeout},
	"CrashLoopBackOff":   {classCrash, reported, otherTimeout},
}

// eventKind is a row of the table of the kubelet's events on pods.
type eventKind struct {
	// stage is the stage that the pod has reached at least.
	stage stage
	// trouble is the zero value for an event that only reports progress.
	trouble kind
}

// podEvents maps the reasons of events on pods that do not run yet, from
// pkg/kubelet/events/event.go in kubelet v1.36. Troubles with containers are read from
// the pod's status instead, because it is always current.
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

// failedEvent is the reason of several kinds of events: about the pod's directories,
// images and containers.
const failedEvent = "Failed"

// findPodEvent returns the row of an event on a pod. It reports false for other events.
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

// creationEvents holds the reasons of events of controllers that cannot create a pod, from
// pkg/controller/controller_utils.go, the stateful_pod_control.go of StatefulSets,
// and deployment/util/deployment_util.go.
var creationEvents = map[string]bool{"FailedCreate": true, "ReplicaSetCreateError": true}

// capacityReasons holds the scheduler's words for a pod that may start when other pods
// end or start. The scheduler's other messages are about something that is missing.
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

// rejections holds the kubelet's reasons for refusing a pod that it would refuse again.
// After other reasons, such as OutOfcpu, it may accept the next pod.
var rejections = map[string]bool{
	"SysctlForbidden": true, "AppArmor": true, "PodOSNotSupported": true, "PodOSSelectorNodeLabelDoesNotMatch": true,
	"PodFeatureUnsupported": true, "PodLevelResourcesNotSupported": true, "SupplementalGroupsPolicyNotSupported": true,
	"InitContainerRestartPolicyForbidden": true,
}

// trouble is a reason why a pod waits.
type trouble struct {
	kind
	stage stage
	err   *NeverStarts
	// tainted reports whether the nodes have taints that the pod does not tolerate.
	tainted bool
	// tooLarge reports whether the pod would not even fit on an empty node.
	tooLarge bool
	// needsPod reports whether only another pod could provide what is missing. Without
	// such a pod there is nothing to wait for.
	needsPod bool
}

// diagnosis finds the trouble of a pod in its status and events.
type diagnosis struct {
	// noPull reports whether the user has forbidden pulls (--no-pull).
	noPull bool
	// ids describes the node's user and group IDs, such as "0 to 65536". It is
	// empty if unknown.
	ids string
	// existing is Streams.Existing, and partitions is Streams.Partitions.
	existing, partitions bool
}

// othersMayFix reports whether other users or the administrator of an existing cluster may
// end a trouble: they free resources and quotas, and add or label nodes.
func (t *trouble) othersMayFix() bool {
	return t.effect == crowded || t.class == classNodes || says(t.err.Message, "didn't match Pod's node affinity/selector")
}

// newTrouble returns the trouble of a row, with the error for the user. It changes the
// row's effect and timeout if the message proves that waiting is useless.
func (d diagnosis) newTrouble(row kind, reached stage, object, reason, message string) *trouble {
	t := &trouble{kind: row, stage: reached, err: d.neverStarts(object, reason, message)}
	if says(message, outOfRange) || says(message, kernelRefuses) {
		t.effect, t.timeout = certain, noTimeout
	}
	t.needsPod = row.class == classNeeds && row.effect == mendable || says(message, onlyPodsBring)
	return t
}

// kernelRefuses holds runc's words for a value that the kernel refuses every time.
const kernelRefuses = "failed to write sysctl"

// passingWords holds the words of troubles on a busy node, where the next attempt may
// succeed. See says for the format.
const passingWords = "timed out|context deadline exceeded|failed to sync|not registered|connection refused|is reserved for"

// onlyPodsBring holds the words about missing objects that no controller of Kubernetes
// creates, but another pod may.
const onlyPodsBring = "hostPath type check failed: |no PriorityClass with name|RuntimeClass & not found"

// stageOf returns the stage that a pod has reached according to its status.
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

// troubleOf returns the trouble in a pod's status, or nil if the status shows none.
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

// schedulingTrouble returns the trouble in the scheduler's message, or nil if the reason is
// unknown.
func (d diagnosis) schedulingTrouble(pod *corev1.Pod, reason, message string) *trouble {
	row := kind{classNeeds, mendable, otherTimeout}
	if d.partitions {
		message = withoutPartitions(message)
	}
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

// taintCount matches the number of tainted nodes in a message of the scheduler, and unhelpful the
// number of nodes where no other pod could make room.
var (
	taintCount = regexp.MustCompile(`(, )?\d+ node\(s\) had untolerated taint\(s\)`)
	unhelpful  = regexp.MustCompile(`(, )?\d+ Preemption is not helpful for scheduling`)
)

// withoutPartitions returns a message of the scheduler without the parts that are always there if
// some Nodes stand for Slurm partitions. Another reason concerns other Nodes.
func withoutPartitions(message string) string {
	without := taintCount.ReplaceAllString(message, "")
	if !strings.Contains(without, "nodes are available: ") || strings.Contains(without, "nodes are available: .") {
		return message // taints are the only reason
	}
	if strings.Contains(without, "No preemption victims found") {
		without = unhelpful.ReplaceAllString(without, "")
	}
	return strings.ReplaceAll(without, ": , ", ": ")
}

// containerTrouble returns the trouble of the pod's first container that cannot start, or
// nil. Init containers come first.
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
		return nil // unknown, or a program that ran: its log has the reason
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

// imageOf returns a container's image by the name in the manifest.
func imageOf(pod *corev1.Pod, status *corev1.ContainerStatus) string {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if container.Name == status.Name {
			return container.Image
		}
	}
	return status.Image
}

// startError returns the last termination of a container if the runtime could not start
// it and it is not running now. Otherwise it returns nil.
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

// rejected returns the trouble of a pod that the kubelet has refused. It returns nil if the
// kubelet has not, or if it may accept the next pod of this kind.
func (d diagnosis) rejected(pod *corev1.Pod) *trouble {
	if !rejections[pod.Status.Reason] && pod.Status.Reason != cluster.NotASlurmJob {
		return nil
	}
	message := strings.TrimPrefix(pod.Status.Message, "Pod was rejected: ")
	t := d.newTrouble(kind{classRejected, certain, pullTimeout}, stageContainers, "pod "+pod.Name, pod.Status.Reason, message)
	if pod.Status.Reason == cluster.NotASlurmJob { // its message has the remedy
		t.err.Message, t.err.Remedy, _ = strings.Cut(message, ": ")
	}
	return t
}

// isTooLarge reports whether the pod of a message of the scheduler needs more CPU or memory
// than an empty node has. The scheduler calls preemption helpful if the pod would fit
// without other pods. Devices do not count, because a device plugin of the workload may
// add them to the node later.
func isTooLarge(message string) bool {
	return strings.Contains(message, "Preemption is not helpful") &&
		(strings.Contains(message, "Insufficient cpu") || strings.Contains(message, "Insufficient memory"))
}

func isPull(reason string) bool { return reason == "ErrImagePull" || reason == "ImagePullBackOff" }
