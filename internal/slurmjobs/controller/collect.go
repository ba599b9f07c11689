package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/results"
)

// copiers is the number of objects whose results are collected at the same time, and of those whose
// inputs are copied.
const copiers = 2

// Times after the first attempt of this process. An attempt that fails later than that is the last
// one. The end of the job does not count: the controller may have been away since.
const (
	// patience limits the wait for a volume.
	patience = 24 * time.Hour
	// visible limits the wait for files: this host may see them some time after a node wrote
	// them to a shared file system.
	visible = 2 * time.Minute
)

// transfers queues objects whose files are to be copied.
type transfers struct {
	queue workqueue.TypedRateLimitingInterface[target]

	mu sync.Mutex
	// known holds the objects that are queued or wait for another attempt, with the time of the
	// first attempt, or zero.
	known map[types.UID]time.Time
}

// newTransfers returns an empty queue.
func (c *Controller) newTransfers() *transfers {
	return &transfers{queue: c.newQueue(), known: map[types.UID]time.Time{}}
}

// add queues an object, unless it is known.
func (q *transfers) add(t target, object *unstructured.Unstructured) {
	t.uid = object.GetUID()
	q.mu.Lock()
	_, known := q.known[t.uid]
	if !known {
		q.known[t.uid] = time.Time{}
	}
	q.mu.Unlock()
	if !known {
		q.queue.Add(t)
	}
}

// begun returns the time of the first attempt for an object, which is now if there was none.
func (q *transfers) begun(uid types.UID) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known[uid].IsZero() {
		q.known[uid] = time.Now()
	}
	return q.known[uid]
}

// transferNext copies the files of the next object. It returns false when serve ends. It does not
// reserve the object, because a deleted object is not to wait for its files.
func (c *Controller) transferNext(ctx context.Context, q *transfers, what string, transfer func(context.Context, target) error) bool {
	t, stop := q.queue.Get()
	if stop {
		return false
	}
	defer q.queue.Done(t)
	if ctx.Err() != nil {
		return false
	}
	if err := transfer(ctx, t); err != nil {
		c.report(fmt.Sprintf("%s of %s %s/%s", what, t.kind.Name, t.namespace, t.name), err)
		q.queue.AddRateLimited(t)
		return true
	}
	q.queue.Forget(t)
	q.mu.Lock()
	delete(q.known, t.uid)
	q.mu.Unlock()
	t.uid = ""
	c.queue.Add(t) // it may have changed meanwhile
	return true
}

// collect collects the results of an object, and writes the outcome into its status. It returns an
// error after which another attempt is to be made.
func (c *Controller) collect(ctx context.Context, t target) error {
	object, status, err := c.read(ctx, t)
	if object == nil || err != nil {
		return err
	}
	if object.GetUID() != t.uid || object.GetDeletionTimestamp() != nil || status.Results != kinds.Collecting {
		return nil
	}
	begun := c.collections.begun(t.uid)
	text, err := c.callCollect(ctx, object)
	if ctx.Err() != nil {
		return err
	}
	next := status
	next.Message = describeEnd(status) + "; "
	switch {
	case err == nil:
		next.Results = kinds.Collected
		next.Message += text
	case !tryAgain(err, begun):
		next.Results = kinds.NotCollected
		next.Message += "the results were not collected: " + err.Error()
	default:
		next.Message += "the results are not collected yet: " + err.Error()
	}
	next.Message = kinds.Shorten(next.Message, kinds.MaxMessage)
	if next.Message != status.Message {
		kind, reason := corev1.EventTypeWarning, "ResultsNotCollected"
		if err == nil {
			kind, reason = corev1.EventTypeNormal, "ResultsCollected"
		}
		c.events.Eventf(object, kind, reason, "%s", next.Message)
	}
	if writeErr := c.writeStatus(ctx, t, object, status, next); writeErr != nil {
		return writeErr
	}
	if next.Results != kinds.Collecting {
		return nil
	}
	return err
}

// callCollect calls Collect. Its panics become errors: otherwise one object would end the controller
// for all objects, again at each start.
func (c *Controller) callCollect(ctx context.Context, object *unstructured.Unstructured) (text string, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			c.Log.Error("collect results: panic", "object", object.GetNamespace()+"/"+object.GetName(), "panic", problem, "stack", string(debug.Stack()))
			err = results.NewFinal(fmt.Errorf("an error in berth (%v): report it with the controller's output", problem))
		}
	}()
	return c.Collect(ctx, object)
}

// tryAgain reports whether results that were not collected may be collected later. begun is the
// time of the first attempt.
func tryAgain(err error, begun time.Time) bool {
	final := new(results.Final)
	if errors.As(err, &final) {
		return false
	}
	if errors.Is(err, os.ErrNotExist) {
		return time.Since(begun) < visible
	}
	return time.Since(begun) < patience
}
