package pilots

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/elastic/wishes"
)

// gated reports whether a pod waits for the loop to read its wishes. A policy of the cluster adds
// the gate, so that no pod with wishes starts on a node that it did not ask for.
func gated(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool {
		return gate.Name == cluster.WishesGate
	})
}

// openGates lets the scheduler place the pods whose wishes were read.
func (l *Loop) openGates(ctx context.Context) {
	for _, pod := range l.view.pods() {
		if !gated(pod) || !l.owners.known(pod) {
			continue
		}
		if err := l.openGate(ctx, pod); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			l.Log.Warn(fmt.Sprintf("let the scheduler place pod %s/%s: %v; trying again", pod.Namespace, pod.Name, err))
			time.AfterFunc(firstPause, l.changed)
		}
	}
}

// openGate removes the gate of a pod. A pod that shares its node with no other, or only with its
// gang, goes only to nodes that are for it.
func (l *Loop) openGate(ctx context.Context, pod *corev1.Pod) error {
	request, problems := wishes.Of(pod, l.owners.of(pod)...)
	spec := map[string]any{"schedulingGates": []any{map[string]any{"$patch": "delete", "name": cluster.WishesGate}}}
	wanted := plan.Pod{Pod: pod, Alone: request.Alone, Gang: request.Gang}
	// A pod that selects nodes of 'berth join --for' keeps its selector, which nobody may change.
	if label := plan.ForValue(wanted.Only()); label != "" && pod.Spec.NodeSelector[cluster.ForLabel] == "" {
		spec["nodeSelector"] = map[string]string{cluster.ForLabel: label}
		// The API server permits more tolerations at any time, and another selector while a gate is
		// closed. Tolerations have no key to merge them by.
		spec["tolerations"] = append(slices.Clone(pod.Spec.Tolerations), corev1.Toleration{
			Key: cluster.ForLabel, Operator: corev1.TolerationOpEqual, Value: label, Effect: corev1.TaintEffectNoSchedule,
		})
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	if _, err := l.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	l.tellIgnored(ctx, pod, problems)
	return nil
}

// tellIgnored writes an Event about wishes that have no meaning here.
func (l *Loop) tellIgnored(ctx context.Context, pod *corev1.Pod, problems []wishes.Problem) {
	var ignored []string
	for _, problem := range problems {
		if !problem.Blocks {
			ignored = append(ignored, problem.String())
		}
	}
	if len(ignored) == 0 {
		return
	}
	const most = 1024 // the API server takes no longer message
	text := strings.Join(ignored, "; ")
	one := &told{pod: pod, notice: notice{corev1.EventTypeWarning, wishIgnored, text[:min(len(text), most)]}, at: time.Now()}
	if err := l.events.write(ctx, one); err != nil && ctx.Err() == nil {
		l.Log.Debug(fmt.Sprintf("write an event for pod %s/%s: %v", pod.Namespace, pod.Name, err))
	}
}
