package workload

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// drainPoll is the interval of the checks whether all pods have ended.
	drainPoll = 50 * time.Millisecond
	// drainDeletes is the number of pods to delete at once.
	drainDeletes = 16
)

var nodeResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// Drained counts the pods that were asked to end, and how many of them ended.
type Drained struct{ Asked, Ended int }

// Drain asks all pods to end, with their own grace period but no more than
// grace, and lets no new ones start. It returns when all have ended, or with
// the context. A grace below a second counts as one second.
func (c *Client) Drain(ctx context.Context, grace time.Duration) (Drained, error) {
	var drained Drained
	nodes, err := c.dynamic.Resource(nodeResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return drained, fmt.Errorf("list nodes: %w", err)
	}
	for _, node := range nodes.Items {
		patch := []byte(`{"spec":{"unschedulable":true}}`)
		if _, err := c.dynamic.Resource(nodeResource).Patch(ctx, node.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return drained, fmt.Errorf("close node %s to new pods: %w", node.GetName(), err)
		}
	}
	if drained.Asked, err = c.deletePods(ctx, max(1, int64(grace/time.Second))); err != nil {
		return drained, err
	}
	ticker := time.NewTicker(drainPoll)
	defer ticker.Stop()
	for {
		running, err := c.runningPods(ctx)
		if err != nil {
			return drained, err
		}
		if drained.Ended = max(0, drained.Asked-len(running)); len(running) == 0 {
			return drained, nil
		}
		select {
		case <-ctx.Done():
			return drained, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// deletePods deletes all running pods, with a grace period of at most longest
// seconds, and returns their number.
func (c *Client) deletePods(ctx context.Context, longest int64) (int, error) {
	pods, err := c.runningPods(ctx)
	if err != nil {
		return 0, err
	}
	deletes, ctx := errgroup.WithContext(ctx)
	deletes.SetLimit(drainDeletes)
	for _, pod := range pods {
		deletes.Go(func() error {
			seconds, set, _ := unstructured.NestedInt64(pod.Object, "spec", "terminationGracePeriodSeconds")
			if !set || seconds > longest {
				seconds = longest
			}
			err := c.dynamic.Resource(podResource).Namespace(pod.GetNamespace()).Delete(ctx, pod.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &seconds})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete pod %s/%s: %w", pod.GetNamespace(), pod.GetName(), err)
			}
			return nil
		})
	}
	return len(pods), deletes.Wait()
}

// runningPods returns the pods that have been started on a node and have not
// ended.
func (c *Client) runningPods(ctx context.Context) ([]unstructured.Unstructured, error) {
	pods, err := c.dynamic.Resource(podResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var running []unstructured.Unstructured
	for _, pod := range pods.Items {
		phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
		node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
		if node != "" && phase != string(corev1.PodSucceeded) && phase != string(corev1.PodFailed) {
			running = append(running, pod)
		}
	}
	return running, nil
}
