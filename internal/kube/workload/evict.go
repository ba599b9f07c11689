package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// evictPoll is the interval of the attempts to evict a pod that a budget keeps.
const evictPoll = time.Second

// keptByBudget is the reason of the Event of a pod that is deleted although a budget keeps it.
const keptByBudget = "DisruptionBudget"

var budgetResource = schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}

// DrainNode is like Drain for one node. Budgets (PodDisruptionBudget) hold for the first half of
// grace: pods are evicted, and a pod that a budget keeps waits for its replacement. Then all pods
// are deleted.
func (c *Client) DrainNode(ctx context.Context, log *slog.Logger, name string, grace time.Duration) (Drained, error) {
	until := time.Now().Add(grace)
	if err := c.close(ctx, name); err != nil {
		return Drained{}, err
	}
	on := func(node string) bool { return node == name }
	if err := c.evict(ctx, log, on, until.Add(-grace/2), until); err != nil && ctx.Err() == nil {
		log.Debug(fmt.Sprintf("evict the pods of node %s: %v", name, err))
	}
	return c.drain(ctx, on, time.Until(until).Round(time.Second))
}

// evict evicts the pods of the nodes that on selects, if there are budgets. It repeats that for
// pods that a budget keeps, until patience ends. Their Events say that they end at the latest when
// the time over comes.
func (c *Client) evict(ctx context.Context, log *slog.Logger, on func(node string) bool, patience, over time.Time) error {
	budgets, err := c.dynamic.Resource(budgetResource).List(ctx, metav1.ListOptions{})
	if err != nil || len(budgets.Items) == 0 {
		return err
	}
	for first := true; ; first = false {
		kept, err := c.evictOnce(ctx, on, over)
		if err != nil || len(kept) == 0 {
			return err
		}
		if first {
			c.tellKept(ctx, log, kept, patience)
		}
		if time.Until(patience) < evictPoll {
			return nil
		}
		select {
		case <-time.After(evictPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tellKept writes an Event for each pod that a budget or a webhook keeps. All end when patience does.
func (c *Client) tellKept(ctx context.Context, log *slog.Logger, kept []keptPod, patience time.Time) {
	for _, one := range kept {
		why := fmt.Sprintf("its node leaves, and the pod ends at %s in any case: %v", patience.Format("15:04:05"), one.why)
		log.Warn(fmt.Sprintf("pod %s/%s: %s", one.pod.GetNamespace(), one.pod.GetName(), why))
		if err := c.warn(ctx, one.pod, why); err != nil {
			log.Debug(fmt.Sprintf("write an event for pod %s/%s: %v", one.pod.GetNamespace(), one.pod.GetName(), err))
		}
	}
}

// keptPod is a pod that a budget or a webhook keeps.
type keptPod struct {
	pod unstructured.Unstructured
	why error
}

// evictOnce evicts the pods of the nodes that on selects, and returns the pods that a budget or a
// webhook keeps.
func (c *Client) evictOnce(ctx context.Context, on func(node string) bool, over time.Time) (kept []keptPod, err error) {
	pods, err := c.runningPods(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	evictions, ctx := errgroup.WithContext(ctx)
	evictions.SetLimit(drainDeletes)
	for _, pod := range pods {
		node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
		if !on(node) || pod.GetDeletionTimestamp() != nil {
			continue
		}
		eviction := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": pod.GetName(), "namespace": pod.GetNamespace()},
			"deleteOptions": map[string]any{"gracePeriodSeconds": gracePeriod(pod, time.Until(over))},
		}}
		evictions.Go(func() error {
			_, err := c.dynamic.Resource(podResource).Namespace(pod.GetNamespace()).Create(ctx, eviction, metav1.CreateOptions{}, "eviction")
			switch {
			case err == nil, apierrors.IsNotFound(err):
			case ctx.Err() != nil:
				return fmt.Errorf("evict pod %s/%s: %w", pod.GetNamespace(), pod.GetName(), err)
			default:
				// A budget (429), two budgets for the pod (500), or a webhook. The other pods
				// are evicted nevertheless.
				mu.Lock()
				defer mu.Unlock()
				kept = append(kept, keptPod{pod, reasonToKeep(err)})
			}
			return nil
		})
	}
	return kept, evictions.Wait()
}

// reasonToKeep returns the API server's reason why a pod is not evicted, with the name of the budget
// if the API server gives it.
func reasonToKeep(err error) error {
	status := apierrors.APIStatus(nil)
	if errors.As(err, &status) {
		if details := status.Status().Details; details != nil {
			for _, cause := range details.Causes {
				if cause.Type == "DisruptionBudget" {
					return errors.New(cause.Message)
				}
			}
		}
	}
	return err
}

// warn writes an Event for a pod that a budget keeps.
func (c *Client) warn(ctx context.Context, pod unstructured.Unstructured, text string) error {
	now := metav1.Now()
	event, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.GetNamespace(), GenerateName: pod.GetName() + "."},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUID(),
		},
		Type: corev1.EventTypeWarning, Reason: keptByBudget, Message: text, Source: corev1.EventSource{Component: "berth"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	})
	if err != nil {
		return err
	}
	_, err = c.dynamic.Resource(eventResource).Namespace(pod.GetNamespace()).Create(ctx, &unstructured.Unstructured{Object: event}, metav1.CreateOptions{})
	return err
}
