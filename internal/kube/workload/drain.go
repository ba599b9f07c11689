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

	"berth.dev/berth/internal/base/cluster"
)

const (
	// drainPoll is the interval of the checks whether all pods have ended.
	drainPoll = 50 * time.Millisecond
	// drainDeletes is the number of pods to delete at once.
	drainDeletes = 16
	// endMargin is the time after a pod's grace period until Drain no longer waits for the
	// pod. It covers a busy kubelet. A container whose process hangs in
	// the kernel, or an object with a finalizer, may stay for good.
	endMargin = 30 * time.Second
)

var nodeResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// Drained counts the pods that were asked to end, and how many of them ended.
type Drained struct{ Asked, Ended int }

// Drain deletes all pods, with their own grace period but no more than grace, and makes the
// nodes unschedulable. It does not change virtual nodes and their pods. It returns when the
// deleted pods have ended or are overdue, or the cause of ctx when ctx ends. Pods that ignore
// unschedulable nodes, such as a DaemonSet's, are replaced at once, and their successors keep
// running. A grace below a second counts as one second.
func (c *Client) Drain(ctx context.Context, grace time.Duration) (Drained, error) {
	return c.DrainExcept(ctx, grace, func(string) bool { return false })
}

// DrainExcept is like Drain, but the pods of the nodes that stay selects run on.
func (c *Client) DrainExcept(ctx context.Context, grace time.Duration, stays func(node string) bool) (Drained, error) {
	nodes, err := c.dynamic.Resource(nodeResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return Drained{}, fmt.Errorf("list nodes: %w", err)
	}
	virtual := map[string]bool{}
	for _, node := range nodes.Items {
		if cluster.IsVirtual(node.GetLabels()) {
			virtual[node.GetName()] = true
			continue
		}
		if err := c.close(ctx, node.GetName()); err != nil {
			return Drained{}, err
		}
	}
	return c.drain(ctx, func(node string) bool { return !virtual[node] && !stays(node) }, grace)
}

// close makes a node unschedulable. A node of another job may have left meanwhile.
func (c *Client) close(ctx context.Context, node string) error {
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	if _, err := c.dynamic.Resource(nodeResource).Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("close node %s to new pods: %w", node, err)
	}
	return nil
}

// drain deletes the pods of the nodes that on selects, and waits for them.
func (c *Client) drain(ctx context.Context, on func(node string) bool, grace time.Duration) (drained Drained, err error) {
	asked, longest, err := c.deletePods(ctx, on, grace)
	if drained.Asked = len(asked); err != nil {
		return drained, err
	}
	overdue := time.After(longest + endMargin)
	ticker := time.NewTicker(drainPoll)
	defer ticker.Stop()
	for {
		running, err := c.runningPods(ctx)
		if err != nil {
			return drained, err
		}
		left := 0
		for _, pod := range running {
			if asked[pod.GetUID()] {
				left++
			}
		}
		if drained.Ended = drained.Asked - left; left == 0 {
			return drained, nil
		}
		select {
		case <-ctx.Done():
			return drained, context.Cause(ctx)
		case <-overdue:
			return drained, nil
		case <-ticker.C:
		}
	}
}

// deletePods deletes all running pods of the nodes that on selects, with a grace period of at
// most grace. It returns their UIDs and their longest grace period.
func (c *Client) deletePods(ctx context.Context, on func(node string) bool, grace time.Duration) (asked map[types.UID]bool, longest time.Duration, err error) {
	pods, err := c.runningPods(ctx)
	if err != nil {
		return nil, 0, err
	}
	asked = map[types.UID]bool{}
	deletes, ctx := errgroup.WithContext(ctx)
	deletes.SetLimit(drainDeletes)
	for _, pod := range pods {
		if node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName"); !on(node) {
			continue
		}
		seconds := gracePeriod(pod, grace)
		asked[pod.GetUID()] = true
		longest = max(longest, time.Duration(seconds)*time.Second)
		deletes.Go(func() error {
			err := c.dynamic.Resource(podResource).Namespace(pod.GetNamespace()).Delete(ctx, pod.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &seconds})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete pod %s/%s: %w", pod.GetNamespace(), pod.GetName(), err)
			}
			return nil
		})
	}
	return asked, longest, deletes.Wait()
}

// gracePeriod returns the grace period of a pod in seconds, at most grace, and one second at least
// if the pod's is longer.
func gracePeriod(pod unstructured.Unstructured, grace time.Duration) int64 {
	limit := max(1, int64(grace/time.Second))
	if seconds, set, _ := unstructured.NestedInt64(pod.Object, "spec", "terminationGracePeriodSeconds"); set && seconds < limit {
		return seconds
	}
	return limit
}

// runningPods returns the pods that are assigned to a node and have not ended.
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
