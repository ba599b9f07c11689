package workload

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/containerlog"
)

// Streams holds the destinations of a workload's output.
type Streams struct {
	Out, Err io.Writer
	// Warn receives berth's messages about the workload, each of one line.
	Warn func(string)
	// Lose receives a message about output that is lost, and the size of the loss. It may
	// be nil, because Progress records both.
	Lose func(string, containerlog.Loss)
	// Inform receives messages that need no attention.
	Inform func(string)
	// NeverStarts is called if waiting for a pod is of no use. After that, Follow only
	// passes on the output of other pods, until its context ends.
	NeverStarts func(*NeverStarts)
	// NoPull reports whether the user has forbidden pulls. Then it is useless to wait for
	// an image from the network.
	NoPull bool
	// Existing reports whether berth did not start the cluster. Then others may free
	// resources or add nodes, so that a pod without a node is no reason to end. The API server
	// mixes standard output and standard error of a container, so Out receives both.
	Existing bool
	// Partitions reports whether the cluster has Nodes that stand for Slurm partitions. The
	// scheduler then mentions their taint in every message.
	Partitions bool
	// Listed is called once all pods that exist have been seen. It may be nil.
	Listed func()
	// Logs selects the pods whose output is followed.
	Logs Selection
	// IDs describes the user and group IDs that the nodes have, such as "0 to 65536". It is
	// empty if unknown.
	IDs string
	// Progress records how much of the logs has been passed on, before and during
	// this run. It is nil if no one continues later.
	Progress *Progress
}

// Result is the result of a workload.
type Result struct {
	// Code is 0, or the exit code of the container that failed.
	Code int
	// Reason is the explanation for the user if Code is not 0.
	Reason string
	// Lost describes the output that could not be passed on. It is empty for none.
	Lost string
}

const (
	// stuckPeriod is the interval of the checks on pods that do not start.
	stuckPeriod = time.Second
	// existingPeriod is the interval of requests about such pods on an existing cluster.
	existingPeriod = 10 * time.Second
)

// follower follows the targets of one run. All its fields belong to the loop
// in run; informers and log streams speak to it through channels.
type follower struct {
	client  *Client
	targets []*target
	streams Streams
	logs    *logs
	stuck   *stuckPods
	pulls   *pullReports
	// endless reports whether no target ends by itself.
	endless bool
	result  Result
	// lists counts the watches of pods and Jobs whose first list has not been handled yet.
	// asked reports whether the targets that no list contained were requested one by one.
	lists int
	asked bool
	// looked is the time of the last requests about missing objects.
	looked time.Time
	// shown holds the pods that a watch has shown before that. noEvents is since when
	// events cannot be listed, or zero.
	shown    map[types.UID]bool
	noEvents time.Time
}

// Follow streams the logs of the objects' pods. It returns the result when all objects
// that end by themselves have ended. If there are no such objects, or a pod can never
// start, Follow returns the cause of ctx when ctx ends.
func (c *Client) Follow(ctx context.Context, objects []Object, streams Streams) (Result, error) {
	found, err := targets(objects)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &follower{
		client: c, targets: found, streams: streams,
		logs:  newLogs(c, streams, streams.Logs.plain(found)),
		stuck: newStuckPods(streams.NoPull),
		pulls: newPullReports(time.Now(), streams.Inform),
		shown: map[types.UID]bool{},
	}
	f.stuck.existing, f.stuck.partitions = streams.Existing, streams.Partitions
	f.stuck.others, f.stuck.ids = slices.ContainsFunc(objects, makesPods), streams.IDs
	if absent := streams.Logs.unknown(found); len(absent) > 0 {
		streams.Warn(fmt.Sprintf("the logs of %s cannot be followed: no such object that has pods is in the manifests", strings.Join(absent, ", ")))
	}
	f.resume()
	if !slices.ContainsFunc(found, func(t *target) bool { return t.finite }) {
		f.endless = true
		streams.Warn(nothingEnds(found))
	}
	return f.run(ctx)
}

func nothingEnds(found []*target) string {
	text := "nothing in the manifests ends by itself: running until the time limit or Ctrl-C"
	for _, t := range found {
		if t.pod {
			return text + "; a Pod ends only with restartPolicy: Never or OnFailure"
		}
	}
	return text
}

// remaining counts the targets that have yet to end.
func (f *follower) remaining() int {
	count := 0
	for _, t := range f.targets {
		if t.finite && !t.done {
			count++
		}
	}
	return count
}

var (
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	eventResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	jobResource   = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
)

func (f *follower) run(ctx context.Context) (Result, error) {
	changes := make(chan change, 64)
	watched := map[string]bool{}
	for _, t := range f.targets {
		namespace := t.object.GetNamespace()
		if !watched[namespace] {
			watched[namespace] = true
			for _, resource := range []schema.GroupVersionResource{podResource, eventResource, jobResource} {
				f.watch(ctx, resource, namespace, changes)
			}
			f.lists += 2
		}
	}
	ticker := time.NewTicker(stuckPeriod)
	defer ticker.Stop()
	continued := f.streams.Progress.Followed().begun()
	f.logs.turns.unordered = continued // handleList sorts
	for f.endless || f.remaining() > 0 || continued && f.lists > 0 {
		select {
		case <-ctx.Done():
			return f.result, context.Cause(ctx)
		case change := <-changes:
			if err := f.handleChange(ctx, change); err != nil {
				return Result{}, err
			}
		case <-f.logs.ended:
			f.logs.retry(ctx)
		case <-ticker.C:
			f.endJobs(ctx)
			f.askForAbsent(ctx)
			f.lookAtNodes(ctx)
			f.lookAtReferences(ctx)
			err := f.stuck.overdue(time.Now())
			for _, report := range f.stuck.takeReports() {
				f.streams.Warn(report)
			}
			if err != nil {
				f.streams.NeverStarts(err)
				return Result{}, f.passOn(ctx, changes)
			}
		}
	}
	// Jobs and their pods are watched separately: a Job may be seen to end before the
	// last state of its pod, which ends the stream of its log.
	err := f.logs.wait(ctx, changes, func(c change) error { return f.handleChange(ctx, c) })
	losses := f.logs.streams.Progress.Followed().Losses
	f.result.Lost = losses.String()
	return f.result, err
}

// passOn passes on the output of pods until ctx ends.
func (f *follower) passOn(ctx context.Context, changes <-chan change) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case c := <-changes:
			_ = f.handleChange(ctx, c) // the run ends for another reason
		case <-f.logs.ended:
			f.logs.retry(ctx)
		}
	}
}

func (f *follower) handleChange(ctx context.Context, c change) error {
	if c.listed {
		f.handleList(ctx)
		return nil
	}
	if c.deleted && c.object.GetKind() == "Event" {
		return nil // the API server deletes each event an hour after it occurred
	}
	if err := f.handle(ctx, c.object); err != nil || !c.deleted {
		return err
	}
	if err := f.handleDeletion(c.object); err != nil {
		return err
	}
	f.endJobs(ctx)
	return nil
}

// change reports a new state of an object, or its last state if deleted is set. If listed
// is set, it has no object, and reports the end of a watch's first list.
type change struct {
	object          *unstructured.Unstructured
	deleted, listed bool
}

// watch sends every state of every object of a resource to changes.
func (f *follower) watch(ctx context.Context, resource schema.GroupVersionResource, namespace string, changes chan<- change) {
	informer := dynamicinformer.NewFilteredDynamicInformer(f.client.dynamic, resource, namespace, 0, cache.Indexers{}, nil).Informer()
	pass := func(object any, deleted bool) {
		if unseen, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unseen.Obj
		}
		state, ok := object.(*unstructured.Unstructured)
		if !ok {
			return
		}
		send(ctx, changes, change{object: state, deleted: deleted})
	}
	// The error can only say that the informer has stopped.
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { pass(object, false) },
		UpdateFunc: func(_, object any) { pass(object, false) },
		DeleteFunc: func(object any) { pass(object, true) },
	})
	go informer.RunWithContext(ctx)
	if resource == eventResource || err != nil {
		return
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			send(ctx, changes, change{listed: true})
		}
	}()
}

func send(ctx context.Context, changes chan<- change, c change) {
	select {
	case changes <- c:
	case <-ctx.Done():
	}
}

// lookAtNodes requests the nodes while a taint keeps a pod away, because the scheduler
// does not name the taint, or while no kubelet has accepted a pod. It changes nothing if
// the API server does not answer in time, perhaps because it is being restarted.
func (f *follower) lookAtNodes(ctx context.Context) {
	if f.streams.Existing {
		return // users may not list its nodes, and there may be many
	}
	if !f.stuck.tainted() && len(f.stuck.unanswered(time.Now())) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stuckPeriod)
	defer cancel()
	if nodes, err := f.client.nodes(ctx); err == nil {
		f.stuck.handleNodes(nodes)
		f.stuck.handleUnknownNodes(nodes, time.Now())
	}
}

// handleDeletion handles the deletion of an object, after its last state. A target that
// was deleted before it ended fails, whoever deleted it.
func (f *follower) handleDeletion(object *unstructured.Unstructured) error {
	f.stuck.forget(object.GetUID(), time.Now())
	if object.GetKind() == "Pod" {
		pod, err := readPod(object)
		if err != nil {
			return err
		}
		f.logs.abandon(pod)
		for _, t := range f.targets {
			delete(t.pods, pod.UID)
		}
	}
	for _, t := range f.targets {
		if !t.finite || t.done || t.object.GetUID() != object.GetUID() {
			continue
		}
		if end := jobEnd(t.state); end != nil {
			f.endJob(t, end)
		} else {
			f.fail(max(t.lastCode, 1), fmt.Sprintf("%s %s was deleted before it ended", strings.ToLower(object.GetKind()), object.GetName()))
			f.end(t)
		}
	}
	return nil
}

func readPod(object *unstructured.Unstructured) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := fromUnstructured(object, &pod); err != nil {
		return nil, fmt.Errorf("read pod %s: %w", object.GetName(), err)
	}
	return &pod, nil
}

func (f *follower) handle(ctx context.Context, object *unstructured.Unstructured) error {
	switch object.GetKind() {
	case "Pod":
		pod, err := readPod(object)
		if err != nil {
			return err
		}
		if !f.asked {
			f.shown[pod.UID] = true
		}
		if !cluster.ShowsSlurmJob(pod.Labels) { // it needs no space, and may wait for days
			f.stuck.updatePod(pod, time.Now())
		}
		f.handlePod(ctx, pod)
	case "Job":
		var job batchv1.Job
		if err := fromUnstructured(object, &job); err != nil {
			return fmt.Errorf("read job %s: %w", object.GetName(), err)
		}
		f.handleJob(ctx, &job)
	case "Event":
		var event corev1.Event
		if err := fromUnstructured(object, &event); err != nil {
			return fmt.Errorf("read event %s: %w", object.GetName(), err)
		}
		f.stuck.handleEvent(&event, time.Now())
		f.pulls.handle(&event)
	}
	return nil
}

func (f *follower) handlePod(ctx context.Context, pod *corev1.Pod) {
	for _, t := range f.targets {
		if !t.owns(pod) {
			continue
		}
		if !t.finite && !f.endless {
			f.logs.servers[pod.UID] = true
		}
		// By default, the output of servers is followed only if nothing ends by itself.
		if f.streams.Logs.includes(t, pod, t.finite || f.endless) {
			f.logs.follow(ctx, pod)
		}
		f.stuck.handlePod(pod, time.Now())
		t.seen = t.seen || t.pod
		if t.pods == nil {
			t.pods = map[types.UID]bool{}
		}
		t.pods[pod.UID] = true
		code, reason := failure(pod)
		if code != 0 {
			t.lastCode = code
		}
		if reason != "" {
			t.lastFailure = fmt.Sprintf("; pod %s: %s", pod.Name, reason)
		}
		if !t.pod || !t.finite || t.done || f.stuck.givesUp(pod.UID) {
			continue
		}
		switch pod.Status.Phase {
		case corev1.PodSucceeded:
			f.end(t)
		case corev1.PodFailed:
			f.fail(max(code, 1), fmt.Sprintf("pod %s failed: %s", pod.Name, reason))
			f.end(t)
		}
	}
}

func (f *follower) handleJob(ctx context.Context, job *batchv1.Job) {
	for _, t := range f.targets {
		if !t.job || t.object.GetUID() != job.UID {
			continue
		}
		f.stuck.watchJob(job, time.Now())
		t.state, t.seen = job, true
	}
	f.endJobs(ctx)
}

// endJobs ends the targets whose Job has ended, once it has handled their pods. If the
// API server does not answer, the next call tries again.
func (f *follower) endJobs(ctx context.Context) {
	for _, t := range f.targets {
		end := jobEnd(t.state)
		if end == nil || t.done {
			continue
		}
		if listed, ok := f.lookAtPods(ctx, t.state); ok && !(end.Type == batchv1.JobFailed && t.awaitsDeletion(listed)) {
			f.endJob(t, end)
		}
	}
}

// deletionLimit bounds the wait for the last states of a Job's deleted pods.
const deletionLimit = 5 * time.Second

// awaitsDeletion reports whether the last state of a deleted pod is still to come. listed holds the
// pods that exist. The pods of a lost node are deleted as soon as they have failed, and only their
// last states contain the reason.
func (t *target) awaitsDeletion(listed map[types.UID]bool) bool {
	for uid := range t.pods {
		if !listed[uid] {
			if t.awaited.IsZero() {
				t.awaited = time.Now()
			}
			return time.Since(t.awaited) < deletionLimit
		}
	}
	return false
}

func (f *follower) endJob(t *target, end *batchv1.JobCondition) {
	if end.Type == batchv1.JobFailed {
		if f.stuck.givesUp(t.state.UID) {
			return
		}
		f.fail(max(t.lastCode, 1), fmt.Sprintf("job %s failed: %s: %s", t.state.Name, end.Reason, end.Message)+t.lastFailure)
	}
	f.end(t)
}

// jobEnd returns the Complete or Failed condition of a Job that has ended, or nil.
func jobEnd(job *batchv1.Job) *batchv1.JobCondition {
	if job == nil {
		return nil
	}
	for i, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

// lookAtPods requests and handles the pods of a Job that has ended, because the watch may
// not have delivered their last states yet. It returns their UIDs, and reports whether the API
// server answered.
func (f *follower) lookAtPods(ctx context.Context, job *batchv1.Job) (map[types.UID]bool, bool) {
	brief, cancel := context.WithTimeout(ctx, stuckPeriod)
	defer cancel()
	pods, err := f.client.dynamic.Resource(podResource).Namespace(job.Namespace).List(brief,
		metav1.ListOptions{LabelSelector: batchv1.ControllerUidLabel + "=" + string(job.UID)})
	if err != nil {
		return nil, false
	}
	slices.SortFunc(pods.Items, func(a, b unstructured.Unstructured) int {
		return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
	})
	listed := map[types.UID]bool{}
	for i := range pods.Items {
		listed[pods.Items[i].GetUID()] = true
		if pod, err := readPod(&pods.Items[i]); err == nil {
			f.handlePod(ctx, pod)
		}
	}
	return listed, true
}

// fail keeps the first failure: later ones are often its consequence.
func (f *follower) fail(code int, reason string) {
	if f.result.Code == 0 {
		f.result = Result{Code: code, Reason: reason}
	}
}

// killedCode is the exit code of a container that SIGKILL has ended. The runtime
// calls it OOMKilled where a limit of the container's was the reason; when the
// whole job is out of memory, the kernel kills without a notice.
const killedCode = 137

// Reasons of pods that end without a word to their containers.
const (
	// evicted is the reason of pods that the kubelet has ended because their node had
	// too little space or memory left.
	evicted = "Evicted"
	// nodeLost is the reason of pods of a lost node (package nodeloss, and Kubernetes' own
	// controller). An earlier failure of a container, which was started again, is not the reason.
	nodeLost = "NodeLost"
)

// failure returns the exit code of the first container of a pod that failed,
// and why it did.
func failure(pod *corev1.Pod) (code int, reason string) {
	code, reason = failureOfContainer(pod)
	if reason == "" || pod.Status.Reason == evicted || pod.Status.Reason == nodeLost {
		reason = pod.Status.Reason
		if pod.Status.Message != "" {
			reason += ": " + strings.TrimSpace(pod.Status.Message)
		}
	}
	return code, reason
}

func failureOfContainer(pod *corev1.Pod) (code int, reason string) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			for _, terminated := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
				if terminated != nil && terminated.ExitCode != 0 {
					text := fmt.Sprintf("container %s: %s, exit code %d", status.Name, terminated.Reason, terminated.ExitCode)
					if terminated.Message != "" {
						text += ": " + strings.TrimSpace(terminated.Message)
					}
					if terminated.ExitCode == killedCode && terminated.Reason == "Error" {
						text += " (killed; if not by you, the job's memory was used up: set resources.limits.memory, or ask Slurm for more with --mem)"
					}
					return int(terminated.ExitCode), text
				}
			}
		}
	}
	return 0, ""
}
