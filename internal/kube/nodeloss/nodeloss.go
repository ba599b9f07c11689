// Package nodeloss reports lost nodes, and nodes that come back, to the API
// server.
//
// Upstream notices a lost node when its lease expires, after 40 s, and moves its
// pods another five minutes later, because it cannot know whether the node is
// dead or only slow. berth knows within seconds, because all nodes are connected
// to the head. So this package does at once what upstream's controllers would do
// in the end (pod garbage collection of a node that is out of service). The node
// gets the taint node.kubernetes.io/out-of-service. Its pods, including the pods
// of StatefulSets, are marked as failed and deleted without waiting for the node.
// Their controllers start new ones.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
package nodeloss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"berth.dev/berth/internal/kube/outage"
)

// lostReason is the reason in the conditions and pods of a lost node.
const lostReason = "NodeLost"

const (
	// rounds is the number of attempts to remove all pods of a lost node. A pod that was
	// being bound when the taint was set appears a little later.
	rounds        = 5
	betweenRounds = 200 * time.Millisecond
	// betweenLooks is the time between two requests of AwaitAll. It is short, because the
	// user waits.
	betweenLooks = 10 * time.Millisecond
)

var (
	nodesResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	podsResource  = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// Reporter writes to one API server. Its methods may be called concurrently for
// different nodes.
type Reporter struct {
	nodes dynamic.ResourceInterface
	pods  dynamic.NamespaceableResourceInterface
}

// NewReporter returns a reporter for a client with full permissions. It sends no
// request.
func NewReporter(client dynamic.Interface) *Reporter {
	return &Reporter{nodes: client.Resource(nodesResource), pods: client.Resource(podsResource)}
}

// AwaitAll returns when count nodes accept pods. A node that is ready keeps the
// not-ready taint for another tenth of a second. Until then, pods that should
// spread would all go to other nodes, and a DaemonSet would look complete without
// a pod on this node. The taint does not come back while the node is ready
// (staleTaints in package control).
func (r *Reporter) AwaitAll(ctx context.Context, count int) error {
	tick := time.NewTicker(betweenLooks)
	defer tick.Stop()
	for {
		found, err := r.nodes.List(ctx, metav1.ListOptions{})
		switch {
		case err == nil:
		case outage.Is(err):
			found = &unstructured.UnstructuredList{}
		default:
			return fmt.Errorf("wait for the nodes to take pods: %w", err)
		}
		taking := 0
		for _, item := range found.Items {
			var node corev1.Node
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &node); err != nil {
				return err
			}
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady }) {
				taking++
			}
		}
		if taking >= count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Lose takes a node out of service and returns when no pod of the node is left. It
// waits for an API server that does not answer: a pod of a lost node starts nowhere else
// before. why is the message for users.
func (r *Reporter) Lose(ctx context.Context, node, why string) error {
	return outage.Outlast(ctx, func(bool) error { return r.lose(ctx, node, why) })
}

func (r *Reporter) lose(ctx context.Context, node, why string) error {
	// Set the taint first, so that no new pod comes to the node.
	err := r.editTaints(ctx, node, func(taints []corev1.Taint) []corev1.Taint {
		return append(taints, corev1.Taint{
			Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute,
		})
	})
	now := metav1.Now()
	err = errors.Join(err, r.patch(ctx, r.nodes, node, map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: lostReason, Message: why, LastTransitionTime: now, LastHeartbeatTime: now,
	}}}))
	if err != nil {
		return fmt.Errorf("take node %s out of service: %w", node, err)
	}
	for range rounds {
		left, err := r.removePods(ctx, node, why)
		if err != nil {
			return fmt.Errorf("remove the pods of lost node %s: %w", node, err)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(betweenRounds):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil // finalizers hold the other pods
}

// Retire is like Lose for a node that will not come back, and deletes it. The node may not
// have registered.
func (r *Reporter) Retire(ctx context.Context, node, why string) error {
	err := r.Lose(ctx, node, why)
	if err == nil {
		err = outage.Outlast(ctx, func(bool) error { return r.nodes.Delete(ctx, node, metav1.DeleteOptions{}) })
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", node, err)
	}
	return nil
}

// Regain puts a node back into service. Its kubelet reports by itself that it is
// ready, and ends the pods that were removed.
func (r *Reporter) Regain(ctx context.Context, node string) error {
	err := outage.Outlast(ctx, func(bool) error {
		return r.editTaints(ctx, node, func(taints []corev1.Taint) []corev1.Taint { return taints })
	})
	if err != nil {
		return fmt.Errorf("put node %s back into service: %w", node, err)
	}
	return nil
}

// editTaints calls change with the node's taints except the out-of-service taint,
// and stores the result.
func (r *Reporter) editTaints(ctx context.Context, name string, change func([]corev1.Taint) []corev1.Taint) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		found, err := r.nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var node corev1.Node
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &node); err != nil {
			return err
		}
		others := slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
			"spec":     map[string]any{"taints": change(others)},
		})
		if err != nil {
			return err
		}
		_, err = r.nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// removePods marks the pods of a node as failed and deletes them. It returns the number of
// pods that were not yet being deleted without a grace period.
func (r *Reporter) removePods(ctx context.Context, node, why string) (int, error) {
	found, err := r.pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return 0, err
	}
	left := 0
	for _, item := range found.Items {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &pod); err != nil {
			return 0, err
		}
		if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
			continue
		}
		left++
		// A conflict means another pod of the same name: a StatefulSet replaces
		// its pods as soon as they are marked.
		if err := r.removePod(ctx, &pod, why); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return 0, err
		}
	}
	return left, nil
}

// removePod sets the reason of a pod's end before it deletes the pod. Watchers
// learn that the pod failed, and a Job learns that the pod was not at fault.
func (r *Reporter) removePod(ctx context.Context, pod *corev1.Pod, why string) error {
	pods := r.pods.Namespace(pod.Namespace)
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		err := r.patch(ctx, pods, pod.Name, map[string]any{
			"phase": corev1.PodFailed, "reason": lostReason, "message": why,
			"conditions": []corev1.PodCondition{{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "DeletionByPodGC", Message: why, LastTransitionTime: metav1.Now(),
			}},
		})
		if err != nil {
			return err
		}
	}
	at := int64(0)
	return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &at, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
}

// patch merges fields into an object's status. Conditions are merged by type.
func (r *Reporter) patch(ctx context.Context, resource dynamic.ResourceInterface, name string, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = resource.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
