package partitions

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// podName identifies a pod that is bound to a Node.
type podName struct{ node, namespace, name string }

// podEnder ends the pods that are bound to the Nodes of partitions and show no job. Pods that do
// not belong to a controller fail at once. A ReplicaSet replaces a failed pod at once, and the
// scheduler may bind the next one to the same Node. So its other pods wait, each longer than the
// one before.
type podEnder struct {
	Options
	client core.CoreV1Interface
	events record.EventRecorder
	queue  workqueue.TypedRateLimitingInterface[podName]
	delays *flowcontrol.Backoff
	// changed is called for the object of a pod that shows a job, when the pod has changed or
	// is gone. If it is nil, such pods are ended, too.
	changed func(kinds.Reference)

	// running counts the watches that have not returned.
	running sync.WaitGroup

	mu      sync.Mutex
	watches map[string]podWatch // by the names of Nodes
}

// podWatch watches the pods of one Node.
type podWatch struct {
	store  cache.Store
	synced cache.InformerSynced
	stop   context.CancelFunc
}

func newPodEnder(client core.CoreV1Interface, options Options, events record.EventRecorder) *podEnder {
	return &podEnder{
		Options: options, client: client, events: events, watches: map[string]podWatch{},
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[podName](options.Interval/10, options.Interval)),
		delays: flowcontrol.NewBackOff(options.FirstDelay, options.MaxDelay),
	}
}

// watch starts to watch the pods of Nodes, and ends the watches of all other Nodes.
func (e *podEnder) watch(ctx context.Context, nodes map[string]*corev1.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, watch := range e.watches {
		if nodes[name] == nil {
			watch.stop()
			delete(e.watches, name)
		}
	}
	for name := range nodes {
		if _, watched := e.watches[name]; watched {
			continue
		}
		add := func(object any) {
			if pod, ok := object.(*corev1.Pod); ok {
				e.queue.Add(podName{name, pod.Namespace, pod.Name})
			}
		}
		gone := func(object any) {
			if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				if ref, shown := e.jobOf(pod); shown {
					e.changed(ref)
				}
			}
		}
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewListWatchFromClient(e.client.RESTClient(), "pods", e.Namespace, fields.OneTermEqualSelector("spec.nodeName", name)),
			ObjectType:    &corev1.Pod{},
			Handler:       cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }, DeleteFunc: gone},
			Transform:     trim,
		})
		watching, stop := context.WithCancel(ctx)
		e.watches[name] = podWatch{store, controller.HasSynced, stop}
		e.running.Go(func() { controller.RunWithContext(watching) })
	}
}

// trim removes what the package does not need.
func trim(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields, pod.Annotations, pod.Labels = nil, nil, nil
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		if ended(pod) {
			pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason}
		}
	}
	return object, nil
}

// jobOf is like the function jobOf, but reports false if no jobs are shown.
func (e *podEnder) jobOf(pod *corev1.Pod) (kinds.Reference, bool) {
	if e.changed == nil {
		return kinds.Reference{}, false
	}
	ref, _, shown := jobOf(pod)
	return ref, shown
}

// serves reports whether the pods of a Node are watched.
func (e *podEnder) serves(node string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, watched := e.watches[node]
	return watched
}

// synced reports whether the pods of all Nodes are known.
func (e *podEnder) synced() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, watch := range e.watches {
		if !watch.synced() {
			return false
		}
	}
	return true
}

// find returns a pod that is bound to one of the Nodes, or nil.
func (e *podEnder) find(namespace, name string) *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, watch := range e.watches {
		if item, exists, err := watch.store.GetByKey(cache.NewObjectName(namespace, name).String()); err == nil && exists {
			return item.(*corev1.Pod)
		}
	}
	return nil
}

// run ends pods until ctx ends.
func (e *podEnder) run(ctx context.Context) {
	defer context.AfterFunc(ctx, e.queue.ShutDown)()
	for {
		name, stop := e.queue.Get()
		if stop {
			return
		}
		wait, err := e.handle(ctx, name)
		switch {
		case err != nil && ctx.Err() == nil:
			e.Log.Debug(fmt.Sprintf("end pod %s/%s on node %s: %v", name.namespace, name.name, name.node, err))
			e.queue.AddRateLimited(name)
		case wait > 0:
			e.queue.AddAfter(name, wait)
		default:
			e.queue.Forget(name)
		}
		e.queue.Done(name)
	}
}

// handle ends a pod. If the pod has to wait, it returns the time to wait.
func (e *podEnder) handle(ctx context.Context, name podName) (wait time.Duration, err error) {
	e.mu.Lock()
	watch, watched := e.watches[name.node]
	e.mu.Unlock()
	if !watched {
		return 0, nil
	}
	item, exists, err := watch.store.GetByKey(cache.NewObjectName(name.namespace, name.name).String())
	if err != nil || !exists {
		return 0, err
	}
	pod := item.(*corev1.Pod)
	ended, deleted := ended(pod), pod.DeletionTimestamp != nil
	ref, shown := e.jobOf(pod)
	if !ended && !deleted && !shown {
		wait = e.wait(pod)
	}
	switch {
	case shown && !deleted:
		e.changed(ref)
		return 0, nil
	case shown:
	case ended && !deleted:
		return 0, nil
	case wait > 0 && pod.Status.Reason != cluster.NotASlurmJob:
		err = e.refuse(ctx, pod, pod.Status.Phase)
	case wait > 0:
	case !ended:
		if err = e.refuse(ctx, pod, corev1.PodFailed); err == nil && !deleted {
			e.events.Event(pod, corev1.EventTypeWarning, cluster.NotASlurmJob, refusal(pod))
			e.count(pod)
		}
	}
	if err == nil && deleted && (pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds > 0) {
		now := int64(0)
		err = e.client.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // another pod has its name
		err = nil
	}
	return wait, err
}

// replacer returns the UID of a pod's controller if it replaces failed pods without delay, and ""
// otherwise.
func replacer(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind == "Job" || owner.Kind == "DaemonSet" {
		return ""
	}
	return string(owner.UID)
}

// wait returns the time until a pod may fail.
func (e *podEnder) wait(pod *corev1.Pod) time.Duration {
	owner := replacer(pod)
	if owner == "" || !e.delays.IsInBackOffSinceUpdate(owner, e.delays.Clock.Now()) {
		return 0
	}
	return e.delays.Get(owner)
}

// count lengthens the delay of the other pods of a pod's controller.
func (e *podEnder) count(pod *corev1.Pod) {
	if owner := replacer(pod); owner != "" {
		e.delays.Next(owner, e.delays.Clock.Now())
	}
	e.delays.GC()
}

// refuse writes the reason into the status of a pod.
func (e *podEnder) refuse(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) error {
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"phase": phase, "reason": cluster.NotASlurmJob, "message": refusal(pod)},
	})
	if err != nil {
		return err
	}
	_, err = e.client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, text, metav1.PatchOptions{FieldManager: component}, "status")
	return err
}

// refusal returns the message for the owner of a pod.
func refusal(pod *corev1.Pod) string {
	text := "node " + pod.Spec.NodeName + " stands for a Slurm partition and runs no pods: "
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return text + "give the DaemonSet a node affinity with the expression " + cluster.VirtualLabel + " NotIn " + cluster.VirtualValue
	}
	return text + "remove the pod's toleration of " + Taint.Key + ", or create a SlurmJob"
}
