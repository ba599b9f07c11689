package pilots

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"berth.dev/berth/internal/elastic/plan"
)

const (
	component = "berth-elastic"
	// wishIgnored is the reason of Events about annotations without a meaning here.
	wishIgnored = "WishIgnored"
	// noNodeRequested is the reason of Events about pods that bring no node.
	noNodeRequested = "NoNodeRequested"
	// refreshAfter is the time after which an Event is written again. The API server deletes
	// Events an hour after the last change.
	refreshAfter = 30 * time.Minute
)

// explain writes, for each pod that waits, why it does. The caller holds mu.
func (l *Loop) explain(in input, result plan.Result) {
	waiting := map[types.UID]bool{}
	for _, pod := range in.Waiting {
		waiting[pod.UID] = true
		if ignored := in.ignored[pod.UID]; ignored != "" {
			l.events.set(pod.Pod, notice{corev1.EventTypeWarning, wishIgnored, ignored})
		}
		if problem := result.Problems[pod.UID]; problem != "" {
			l.events.set(pod.Pod, notice{corev1.EventTypeWarning, noNodeRequested, problem})
		} else if p := l.pilots[result.For[pod.UID]]; p != nil {
			if said := p.describe(); said.text != "" {
				l.events.set(pod.Pod, said)
			}
		}
	}
	l.events.keep(waiting)
}

// describe returns the Event of a pod that waits for the pilot. The caller holds mu.
func (p *pilot) describe() notice {
	switch {
	case p.Job == "" && p.problem != "":
		return notice{corev1.EventTypeWarning, "NodeRequested", p.problem + "; berth tries again"}
	case p.Job == "" || p.State == cancelled:
		return notice{}
	case p.started():
		text := fmt.Sprintf("job %s brings a node, and runs", p.Job)
		if p.Hosts != "" {
			text += " on " + p.Hosts
		}
		return notice{corev1.EventTypeNormal, "NodeStarted", text}
	}
	text := fmt.Sprintf("job %s brings a node, and waits in Slurm's queue", p.Job)
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	if p.Start != "" {
		text += "; Slurm expects to start it at " + p.Start
	}
	return notice{corev1.EventTypeNormal, "NodeRequested", text}
}

// notice is the content of an Event.
type notice struct{ kind, reason, text string }

// told is an Event of a pod.
type told struct {
	pod *corev1.Pod
	notice
	at      time.Time
	written bool
}

// topic identifies an Event. A pod has one about its node, and one about ignored wishes.
type topic struct {
	pod     types.UID
	ignored bool
}

// events keeps one Event for each topic, and changes it only when its text changes. The recorder of
// client-go makes a new Event for each text.
type events struct {
	core core.CoreV1Interface
	log  *slog.Logger
	wake chan struct{}

	mu  sync.Mutex
	all map[topic]*told
}

func newEvents(client core.CoreV1Interface, log *slog.Logger) *events {
	return &events{core: client, log: log, wake: make(chan struct{}, 1), all: map[topic]*told{}}
}

// set sets the Event of a pod. It is written soon.
func (e *events) set(pod *corev1.Pod, is notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	about := topic{pod.UID, is.reason == wishIgnored}
	if was := e.all[about]; was != nil && was.notice == is && time.Since(was.at) < refreshAfter {
		return
	}
	e.all[about] = &told{pod: pod, notice: is, at: time.Now()}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// keep forgets the Events of pods that no longer wait. They stay in the cluster.
func (e *events) keep(waiting map[types.UID]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for about := range e.all {
		if !waiting[about.pod] {
			delete(e.all, about)
		}
	}
}

// run writes Events until ctx ends.
func (e *events) run(ctx context.Context) {
	for {
		select {
		case <-e.wake:
		case <-ctx.Done():
			return
		}
		e.mu.Lock()
		var next []*told
		for _, one := range e.all {
			if !one.written {
				one.written = true
				next = append(next, one)
			}
		}
		e.mu.Unlock()
		for _, one := range next {
			if err := e.write(ctx, one); err != nil && ctx.Err() == nil {
				// Without the Event, only an explanation is missing.
				e.log.Debug(fmt.Sprintf("write an event for pod %s/%s: %v", one.pod.Namespace, one.pod.Name, err))
			}
		}
	}
}

// write creates or changes the Event of a pod.
func (e *events) write(ctx context.Context, one *told) error {
	now := metav1.NewTime(one.at)
	name, ending := one.pod.Name, "node"
	if one.reason == wishIgnored {
		ending = "wishes"
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: one.pod.Namespace, Name: fmt.Sprintf("%s.%s.%s", name[:min(len(name), 200)], one.pod.UID, ending)},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: one.pod.Namespace, Name: name, UID: one.pod.UID,
		},
		Type: one.kind, Reason: one.reason, Message: one.text, Source: corev1.EventSource{Component: component},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := e.core.Events(one.pod.Namespace).Create(ctx, event, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	patch, err := json.Marshal(map[string]any{"type": one.kind, "reason": one.reason, "message": one.text, "lastTimestamp": now})
	if err != nil {
		return err
	}
	_, err = e.core.Events(one.pod.Namespace).Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
