package workload

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// absentTimeout bounds a request about an object that was never seen.
	absentTimeout = 5 * time.Second
	// eventsTimeout bounds the repetition of requests for events after an error.
	// Without them, the result of an object that was never seen is not known.
	eventsTimeout = time.Minute
	// These are reasons of events of a Job and of a pod. The message of jobMadePod is
	// madePod and a name.
	jobCompleted     = "Completed"
	jobMadePod       = "SuccessfulCreate"
	madePod          = "Created pod: "
	containerStarted = "Started"
)

// jobFailures holds the reasons of a condition, and an event, that a Job has failed.
var jobFailures = []string{
	batchv1.JobReasonBackoffLimitExceeded, batchv1.JobReasonDeadlineExceeded, batchv1.JobReasonPodFailurePolicy,
	batchv1.JobReasonMaxFailedIndexesExceeded, batchv1.JobReasonFailedIndexes,
}

// askForAbsent asks for each target that no first list had, until it knows about all: no
// watch reports the deletion of an object that was never seen. Without an answer it tries
// again later.
func (f *follower) askForAbsent(ctx context.Context) {
	if f.lists > 0 || f.asked {
		return
	}
	known := true
	events := map[string][]corev1.Event{} // by namespace
	for _, t := range f.targets {
		if !t.finite || t.done || t.seen {
			continue
		}
		exists, err := f.client.has(ctx, t)
		if err != nil {
			return
		}
		if exists {
			continue // a watch reports it
		}
		namespace := t.object.GetNamespace()
		if _, read := events[namespace]; !read {
			if events[namespace], err = f.listEvents(ctx, namespace); err != nil {
				return
			}
		}
		known = f.handleAbsent(ctx, t, events[namespace]) && known
	}
	f.asked = known
}

// listEvents returns the events of a namespace. After errors for eventsTimeout, it returns
// no events and no error.
func (f *follower) listEvents(ctx context.Context, namespace string) ([]corev1.Event, error) {
	events, err := f.client.events(ctx, namespace)
	switch {
	case err == nil:
		f.noEvents = time.Time{}
	case f.noEvents.IsZero():
		f.noEvents = time.Now()
	case time.Since(f.noEvents) > eventsTimeout:
		return nil, nil
	}
	return events, err
}

// handleAbsent ends a target that was deleted unseen. A Job ends as its events say, and
// the logs of its pods are followed. A pod has such an event if it exceeded its deadline.
// handleAbsent returns false if a Job has none yet. Of a Job with more than about 20 pods,
// the controller may not send it.
func (f *follower) handleAbsent(ctx context.Context, t *target, events []corev1.Event) (known bool) {
	name := t.object.GetName()
	end := endInEvents(t.object.GetUID(), events)
	if end == nil && t.job && !t.gone {
		t.gone = true
		return false
	}
	if t.job {
		f.followUnseen(ctx, t, events)
	}
	switch {
	case t.pod && end != nil && end.Type == batchv1.JobFailed:
		f.fail(1, fmt.Sprintf("pod %s failed: %s: %s", name, end.Reason, end.Message))
		f.end(t)
		return true
	case t.pod || end == nil:
		f.fail(1, fmt.Sprintf("%s %s was deleted before its result was seen, so it is not known whether it succeeded", strings.ToLower(t.object.GetKind()), name))
		f.end(t)
		return true
	}
	t.state = &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.object.GetNamespace(), Name: name, UID: t.object.GetUID()},
		Status:     batchv1.JobStatus{Conditions: []batchv1.JobCondition{*end}},
	}
	f.endJobs(ctx)
	return true
}

// endInEvents returns the condition that ended a Job, or nil if no event tells it. The
// event of a pod has the reason of a Job.
func endInEvents(uid types.UID, events []corev1.Event) *batchv1.JobCondition {
	for _, event := range events {
		switch {
		case event.InvolvedObject.UID != uid:
		case event.Reason == jobCompleted:
			return &batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
		case slices.Contains(jobFailures, event.Reason):
			return &batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: event.Reason, Message: event.Message}
		}
	}
	return nil
}

// followUnseen follows the logs of a deleted Job's containers that nobody has followed.
// Their nodes keep them for a minute.
func (f *follower) followUnseen(ctx context.Context, t *target, events []corev1.Event) {
	labels, _, _ := unstructured.NestedStringMap(t.object.Object, "spec", "template", "metadata", "labels")
	if !f.streams.Logs.includes(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}}, true) {
		return
	}
	made := f.podsOfJob(t, events)
	for _, event := range events {
		if event.InvolvedObject.Kind != "Pod" || event.Reason != containerStarted || !made(event.InvolvedObject) {
			continue
		}
		pod := event.InvolvedObject
		// The path is such as spec.containers{main}.
		_, container, _ := strings.Cut(strings.TrimSuffix(pod.FieldPath, "}"), "{")
		if f.logs.nodes[string(pod.UID)+"/"+container] == nil {
			place := logPlace{pod.Namespace, pod.Name, event.Source.Host}
			f.logs.followDeletedPod(ctx, place, pod.UID, container, event.FirstTimestamp.Time)
		}
	}
}

// podsOfJob returns a function that reports whether a Job has made a pod that was deleted.
// The controller combines its events after the first ten, so that they name no more pods.
// Then the form of the name decides, unless another object may have made the pod as well.
func (f *follower) podsOfJob(t *target, events []corev1.Event) func(pod corev1.ObjectReference) bool {
	named := map[string]bool{} // whether the Job has made the pod
	combined := false
	var others []*regexp.Regexp
	for _, other := range f.targets {
		if other != t && other.object.GetNamespace() == t.object.GetNamespace() {
			others = append(others, podForm(other.object.GetKind(), other.object.GetName()))
		}
	}
	for _, event := range events {
		if event.Reason != jobMadePod {
			continue
		}
		maker := event.InvolvedObject
		name, single := strings.CutPrefix(event.Message, madePod)
		switch {
		case single:
			named[name] = named[name] || maker.UID == t.object.GetUID()
		case maker.UID == t.object.GetUID():
			combined = true
		}
		if maker.UID != t.object.GetUID() {
			others = append(others, podForm(maker.Kind, maker.Name))
		}
	}
	mode, _, _ := unstructured.NestedString(t.object.Object, "spec", "completionMode")
	form := podForm(mode, t.object.GetName())
	return func(pod corev1.ObjectReference) bool {
		if made, known := named[pod.Name]; known {
			return made
		}
		// The pods that still exist have an owner, and their logs are followed if it is the Job.
		return combined && !f.shown[pod.UID] && form.MatchString(pod.Name) &&
			!slices.ContainsFunc(others, func(other *regexp.Regexp) bool { return other.MatchString(pod.Name) })
	}
}

// podForm returns the form of the names of pods that an object of a kind makes, or a Job of
// a completion mode.
func podForm(kind, name string) *regexp.Regexp {
	const random, number = `-[a-z0-9]{5}`, `-\d+`
	form := random
	switch kind {
	case "Pod":
		form = ""
	case string(batchv1.IndexedCompletion):
		form = number + random
	case "Job":
		form = "(" + number + ")?" + random
	case "Deployment":
		form = `-[a-z0-9]+` + random
	case "StatefulSet":
		form = number
	case "CronJob":
		form = number + "(" + number + ")?" + random
	}
	return regexp.MustCompile("^" + regexp.QuoteMeta(name) + form + "$")
}

// has reports whether the object of a target exists.
func (c *Client) has(ctx context.Context, t *target) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, absentTimeout)
	defer cancel()
	resource := podResource
	if t.job {
		resource = jobResource
	}
	now, err := c.dynamic.Resource(resource).Namespace(t.object.GetNamespace()).Get(ctx, t.object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && now.GetUID() == t.object.GetUID(), err
}

// events returns the events of a namespace, the oldest first. They exist for an hour.
func (c *Client) events(ctx context.Context, namespace string) ([]corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, absentTimeout)
	defer cancel()
	list, err := c.dynamic.Resource(eventResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	events := make([]corev1.Event, len(list.Items))
	for i := range list.Items {
		if err := fromUnstructured(&list.Items[i], &events[i]); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return a.FirstTimestamp.Compare(b.FirstTimestamp.Time) })
	return events, nil
}
