package node

import (
	"context"
	"fmt"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/util/queue"
)

// promptQueue replaces the queue of upstream's pod workers for pods that have more
// work. The kubelet empties that queue once a second. A pod that ends passes it
// twice, from running to terminating to terminated, and only then may its phase be
// Succeeded. So a job's result comes a second late, for a few milliseconds of
// work. promptQueue runs items that are due at once.
//
// A worker also refuses to continue before the kubelet has queried the runtime
// about the pod again, which also happens once a second. So promptQueue requests
// such a query after each step of a worker.
type promptQueue struct {
	queue.WorkQueue
	look, now func(types.UID)
}

// Enqueue serves the last call of a worker. It calls look. For an item without a
// delay it also calls now; the item stays in the queue until the worker enqueues it
// with a later time.
func (q *promptQueue) Enqueue(item types.UID, delay time.Duration) {
	q.WorkQueue.Enqueue(item, delay)
	q.look(item)
	if delay <= 0 {
		go q.now(item) // the caller is the worker that is to do it
	}
}

// installPromptQueue puts a promptQueue into a kubelet that is being made.
func installPromptQueue(ctx context.Context, k *kubelet.Kubelet) error {
	return setQueue(k, k.RequestPodRelist, func(uid types.UID) {
		for _, pod := range k.GetPods() {
			if pod.UID == uid {
				k.HandlePodSyncs(ctx, []*v1.Pod{pod})
			}
		}
	})
}

func setQueue(k *kubelet.Kubelet, look, now func(types.UID)) error {
	workers, err := hidden(reflect.ValueOf(k).Elem(), "podWorkers")
	if err != nil {
		return err
	}
	field, err := hidden(reflect.Indirect(workers.Elem()), "workQueue")
	if err != nil {
		return err
	}
	real, ok := field.Interface().(queue.WorkQueue)
	if !ok {
		return fmt.Errorf("the pod workers' queue is a %T", field.Interface())
	}
	field.Set(reflect.ValueOf(&promptQueue{real, look, now}))
	return nil
}
