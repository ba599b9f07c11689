package pilots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

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

// openGates lets the scheduler place pods, as soon as their wishes were read, until ctx ends. Passes
// do not wait for the requests, one for each pod.
func (l *Loop) openGates(ctx context.Context) {
	for {
		select {
		case <-l.known:
			l.openGatesOnce(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// openGatesOnce opens the gates of the pods that have one now.
func (l *Loop) openGatesOnce(ctx context.Context) {
	for _, pod := range l.view.pods() {
		if !gated(pod) || !l.owners.known(pod) {
			continue
		}
		if err := l.openGate(ctx, pod); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			l.Log.Warn(fmt.Sprintf("let the scheduler place pod %s/%s: %v; trying again", pod.Namespace, pod.Name, err))
			time.AfterFunc(firstPause, func() { signal(l.known) })
		}
	}
}

// openGate removes the gate of a pod. A pod that shares its node with no other, or only with its
// gang, goes only to nodes that are for it.
func (l *Loop) openGate(ctx context.Context, pod *corev1.Pod) error {
	request, problems := wishes.Of(pod, l.owners.of(pod)...)
	spec := map[string]any{}
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
	if err := removeGate(ctx, l.core, pod, spec); err != nil {
		return err
	}
	l.tellIgnored(ctx, pod, problems)
	return nil
}

// OpenGates lets the scheduler place all pods whose gate is closed on any node. It is for a cluster
// that submits no pilots, and continues one that did. why is the reason in the pods' Events.
func OpenGates(ctx context.Context, config *rest.Config, why string, log *slog.Logger) error {
	client, err := core.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return openAll(ctx, client, why, log)
}

func openAll(ctx context.Context, client core.CoreV1Interface, why string, log *slog.Logger) error {
	unplaced := fields.OneTermEqualSelector("spec.nodeName", "").String()
	pods, err := client.Pods(corev1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: unplaced})
	if err != nil {
		return fmt.Errorf("list the pods that have no node: %w", err)
	}
	var failed error
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !gated(pod) {
			continue
		}
		if err := removeGate(ctx, client, pod, nil); err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("let the scheduler place pod %s/%s: %w", pod.Namespace, pod.Name, err))
			continue
		}
		one := &told{pod: pod, notice: notice{corev1.EventTypeWarning, noNodeRequested, "the annotations of the pod for Slurm are ignored: " + why}, at: time.Now()}
		if err := newEvents(client, log).write(ctx, one); err != nil {
			log.Debug(fmt.Sprintf("write an event for pod %s/%s: %v", pod.Namespace, pod.Name, err))
		}
	}
	return failed
}

// removeGate removes the gate of a pod, and changes other parts of its spec.
func removeGate(ctx context.Context, client core.CoreV1Interface, pod *corev1.Pod, others map[string]any) error {
	spec := map[string]any{"schedulingGates": []any{map[string]any{"$patch": "delete", "name": cluster.WishesGate}}}
	maps.Copy(spec, others)
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
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
