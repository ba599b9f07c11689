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

// copiers is the number of objects whose results are collected at the same time. The same number
// applies to objects whose inputs are copied, and to objects whose files are uploaded.
const copiers = 2

// Unfinished wraps the error of a Collect that has collected only a part of the results.
type Unfinished struct{ Err error }

func (u *Unfinished) Error() string { return u.Err.Error() }

// Unwrap returns the wrapped error.
func (u *Unfinished) Unwrap() error { return u.Err }

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
	// known holds the objects that are queued or wait for another attempt. Its values are the times
	// of the first attempt since the last progress, or zero.
	known map[types.UID]time.Time
	// running holds the attempts that run.
	running map[types.UID]attempt
}

// attempt is a transfer of the files of one version of an object.
type attempt struct {
	generation int64
	cancel     context.CancelCauseFunc
}

// errChanged ends an attempt whose object was deleted or edited.
var errChanged = errors.New("the object was deleted or edited")

// begin registers an attempt, and returns its context. The caller calls end after the attempt.
func (q *transfers) begin(ctx context.Context, object *unstructured.Unstructured) (attempting context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[object.GetUID()] = attempt{object.GetGeneration(), cancel}
	return ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.running, object.GetUID())
		cancel(nil)
	}
}

// check cancels the running attempt of an object that was deleted, or edited since the attempt began.
func (q *transfers) check(object *unstructured.Unstructured, deleted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if running, ok := q.running[object.GetUID()]; ok && (deleted || running.generation < object.GetGeneration()) {
		running.cancel(errChanged)
	}
}

// newTransfers returns an empty queue.
func (c *Controller) newTransfers() *transfers {
	return &transfers{queue: c.newQueue(), known: map[types.UID]time.Time{}, running: map[types.UID]attempt{}}
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

// progressed makes the next attempt of an object count as its first.
func (q *transfers) progressed(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.known[uid] = time.Time{}
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
	if err := transfer(ctx, t); errors.As(err, new(*Unfinished)) {
		q.progressed(t.uid)
		q.queue.Forget(t)
		q.queue.Add(t)
		return true
	} else if err != nil {
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
	q := c.collectionsOf(t.kind)
	begun := q.begun(t.uid)
	attempting, end := c.begin(ctx, q, t, object)
	text, err := c.callCollect(attempting, object)
	end()
	if err != nil && errors.Is(context.Cause(attempting), errChanged) || ctx.Err() != nil {
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
		} else if errors.As(err, new(*Unfinished)) {
			kind, reason = corev1.EventTypeNormal, "CollectingResults"
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

// begin registers an attempt for an object. If the object has changed since it was read, the context
// of the attempt is already cancelled.
func (c *Controller) begin(ctx context.Context, q *transfers, t target, object *unstructured.Unstructured) (attempting context.Context, end func()) {
	attempting, end = q.begin(ctx, object)
	seen := c.Object(kinds.Reference{Kind: t.kind, Namespace: t.namespace, Name: t.name})
	if seen == nil || seen.GetUID() != object.GetUID() {
		q.check(object, true)
	} else {
		q.check(seen, seen.GetDeletionTimestamp() != nil)
	}
	return attempting, end
}

// collectionsOf returns the queue for the results of a kind. Uploads have their own queue, so that
// slow stores do not delay results for volumes.
func (c *Controller) collectionsOf(kind kinds.Kind) *transfers {
	if kind == kinds.BridgeJob {
		return c.uploads
	}
	return c.collections
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
	if errors.As(err, new(*Unfinished)) {
		return true
	}
	if errors.Is(err, os.ErrNotExist) {
		return time.Since(begun) < visible
	}
	return time.Since(begun) < patience
}
