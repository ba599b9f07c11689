package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

var eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// startEvents sets c.events to a recorder that works until the returned function is called.
func (c *Controller) startEvents() (stop func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(eventSink{c})
	c.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "berth-slurm-jobs"})
	return broadcaster.Shutdown
}

// eventSink writes events with the dynamic client. The recorder's own sink needs a typed client.
type eventSink struct{ c *Controller }

func (s eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event)
	if err != nil {
		return nil, err
	}
	created := &unstructured.Unstructured{Object: object}
	created.SetAPIVersion("v1")
	created.SetKind("Event")
	created, err = s.c.client.Resource(eventsResource).Namespace(event.Namespace).Create(context.Background(), created, metav1.CreateOptions{})
	return asEvent(created, err)
}

// Update creates the event. The recorder does not call it: it patches repeated events.
func (s eventSink) Update(event *corev1.Event) (*corev1.Event, error) { return s.Create(event) }

func (s eventSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	patched, err := s.c.client.Resource(eventsResource).Namespace(event.Namespace).Patch(context.Background(), event.Name,
		types.StrategicMergePatchType, data, metav1.PatchOptions{})
	return asEvent(patched, err)
}

// asEvent converts the result of a request.
func asEvent(object *unstructured.Unstructured, err error) (*corev1.Event, error) {
	if err != nil {
		return nil, err
	}
	event := &corev1.Event{}
	return event, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, event)
}

// recordChange records an event for the difference between two statuses, if there is one. reason is
// the reason of an event that only has a message.
func (c *Controller) recordChange(object *unstructured.Unstructured, was, next kinds.Status, reason string) {
	switch {
	case next.State == "COMPLETED" && was.State != next.State:
		c.events.Eventf(object, corev1.EventTypeNormal, "Completed", "%s", next.Message)
	case kinds.Ended(next.State) && was.State != next.State:
		c.events.Eventf(object, corev1.EventTypeWarning, "Failed", "%s", next.Message)
	case next.Restarts > was.Restarts:
		c.events.Eventf(object, corev1.EventTypeWarning, "Requeued", "Slurm requeued job %s", next.JobID)
	case next.State == "RUNNING" && was.State != next.State:
		c.events.Eventf(object, corev1.EventTypeNormal, "Started", "job %s runs on %s", next.JobID, next.Nodes)
	case next.State == "PENDING" && next.Reason != "" && (was.State != next.State || was.Reason != next.Reason):
		text := fmt.Sprintf("job %s waits: %s", next.JobID, next.Reason)
		if next.ExpectedStart != "" {
			text += "; Slurm expects to start it at " + next.ExpectedStart
		}
		c.events.Eventf(object, corev1.EventTypeNormal, "Pending", "%s", text)
	case next.Message != "" && was.Message != next.Message:
		c.events.Eventf(object, corev1.EventTypeWarning, reason, "%s", next.Message)
	}
}
