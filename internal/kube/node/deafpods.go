package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// reasonFastPathLost is the reason in events about pods that lost TCP.
const reasonFastPathLost = "FastPathLost"

const fastPathLost = "the process that answers for this pod's connections was killed together with the one that keeps what it needs: the pod cannot connect any more, and is deleted"

// deafPods deletes pods whose trapped system calls no process can answer any more, because
// both processes that could were killed at once. Their controllers replace the pods.
type deafPods struct {
	node   string
	client kubernetes.Interface
	log    *slog.Logger
}

func (d deafPods) replace(ctx context.Context, lost []netip.Addr) {
	pods, err := d.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	if err != nil {
		d.log.Error("pods that cannot connect any more are left as they are", "addresses", lost, "err", err)
		return
	}
	for _, pod := range pods.Items {
		address, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil || pod.Spec.HostNetwork || !slices.Contains(lost, address) || pod.Status.Phase != v1.PodRunning {
			continue
		}
		if err := d.delete(ctx, &pod); err != nil && !apierrors.IsNotFound(err) {
			d.log.Error("a pod that cannot connect any more is left as it is", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
	}
}

// delete records the reason on the pod, as a preempting node does, and deletes
// the pod.
func (d deafPods) delete(ctx context.Context, pod *v1.Pod) error {
	now := metav1.Now()
	_, err := d.client.CoreV1().Events(pod.Namespace).Create(ctx, &v1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: v1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		},
		Type: v1.EventTypeWarning, Reason: reasonFastPathLost, Message: fastPathLost,
		Source: v1.EventSource{Component: "berth", Host: d.node}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make an event: %w", err)
	}
	// Jobs and their like count it as a disruption, not as a failure of the program.
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":%q,"message":%q,"lastTransitionTime":%q}]}}`,
		v1.DisruptionTarget, reasonFastPathLost, fastPathLost, now.UTC().Format(time.RFC3339))
	if _, err := d.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set the reason for its deletion: %w", err)
	}
	d.log.Warn("a pod cannot connect any more, and is deleted", "pod", pod.Namespace+"/"+pod.Name)
	return d.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
}
