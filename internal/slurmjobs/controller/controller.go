// Package controller submits exactly one Slurm job for each object in a namespace, and keeps the
// object's status up to date. It reads and writes objects through the API server. Slurm's
// commands belong to package queue, the options that a script may have to package script, and
// the question who may create objects to package trust.
package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// Finalizer keeps a deleted object until its job is cancelled.
const Finalizer = "berth.dev/slurm-job"

// workers is the number of objects of a queue that are reconciled at the same time.
const workers = 4

// target identifies an object.
type target struct {
	kind            kinds.Kind
	namespace, name string
	// gone is the UID of an object that no longer exists, whose job is to be cancelled.
	gone types.UID
	// uid is the UID of an object in inputs or collections. A later object of the same name
	// is another target.
	uid types.UID
}

// Controller serves the objects of a namespace.
type Controller struct {
	Options
	client   dynamic.Interface
	informer map[kinds.Kind]cache.SharedIndexInformer
	// queue holds objects to reconcile. submissions holds objects without a released job,
	// so that submissions, which wait for each other, do not delay other objects.
	queue, submissions workqueue.TypedRateLimitingInterface[target]
	// inputs holds objects whose inputs are to be copied, collections those whose results are to
	// be collected, and uploads those whose files are to be uploaded.
	inputs, collections, uploads *transfers
	events                       record.EventRecorder

	mu         sync.Mutex
	busy       map[target]bool        // objects that a worker of either queue handles
	states     map[string]queue.State // result of the last poll that succeeded, by UID
	slurmError string                 // error of the last poll, or ""
	followed   map[string]target      // objects with a released job at the last poll, by UID; only poll uses it
	warned     bool                   // about missing rights
	killed     map[types.UID]bool     // killed objects whose jobs were cancelled and have not ended
}

// New returns a controller. It sends no requests.
func New(options Options) (*Controller, error) {
	client, err := dynamic.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	c := &Controller{
		Options: options, client: client, informer: map[kinds.Kind]cache.SharedIndexInformer{}, killed: map[types.UID]bool{}, busy: map[target]bool{},
	}
	for _, kind := range kinds.All() {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, kind.Resource(), options.Namespace, 0, cache.Indexers{}, nil).Informer()
		if err := informer.SetTransform(trim); err != nil {
			return nil, err
		}
		err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			c.report("watch "+kind.Plural, err)
		})
		if err != nil {
			return nil, err
		}
		c.informer[kind] = informer
	}
	return c, nil
}

// trim removes, from the objects that the informers keep, what reconcile does not need. Scripts
// may be large.
func trim(object any) (any, error) {
	full, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	full.SetManagedFields(nil)
	full.SetAnnotations(nil)
	spec := map[string]any{"kill": kinds.Killed(full)}
	if kinds.HasInputs(full) {
		spec["prepare"] = true
	}
	if kinds.HasResults(full) {
		spec["results"] = true
	}
	full.Object["spec"] = spec
	return full, nil
}

// Run serves objects whenever this controller leads, until ctx ends. Then it returns nil. It
// returns an error at once if CheckDefinitions does, or if the options are invalid.
func (c *Controller) Run(ctx context.Context) error {
	if err := CheckDefinitions(ctx, c.client, c.Namespace); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, informer := range c.informer {
		group.Go(func() error {
			informer.RunWithContext(ctx)
			return nil
		})
	}
	group.Go(func() error {
		for ctx.Err() == nil {
			if err := c.lead(ctx, c.serve); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// serve reconciles objects until ctx ends. c.lead calls it while this controller leads.
func (c *Controller) serve(ctx context.Context) {
	c.mu.Lock()
	c.states, c.slurmError, c.followed = nil, "", nil // of an earlier lease
	c.mu.Unlock()
	stopEvents := c.startEvents()
	defer stopEvents()
	c.queue, c.submissions = c.newQueue(), c.newQueue()
	c.inputs, c.collections, c.uploads = c.newTransfers(), c.newTransfers(), c.newTransfers()
	shutDown := func() {
		for _, queue := range []workqueue.TypedRateLimitingInterface[target]{c.queue, c.submissions, c.inputs.queue, c.collections.queue, c.uploads.queue} {
			queue.ShutDown()
		}
	}
	defer shutDown()
	synced := []cache.InformerSynced{}
	for kind, informer := range c.informer {
		handler, err := informer.AddEventHandler(c.handler(kind))
		if err != nil { // the informer has stopped, so ctx has ended
			return
		}
		defer func() { _ = informer.RemoveEventHandler(handler) }()
		synced = append(synced, handler.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	var group sync.WaitGroup
	if c.Beside != nil {
		group.Go(func() { c.Beside(ctx) })
	}
	for range workers {
		group.Go(func() {
			for c.handleNext(ctx, c.queue, c.reconcile) {
			}
		})
		group.Go(func() {
			for c.handleNext(ctx, c.submissions, c.submitAndRelease) {
			}
		})
	}
	for range copiers {
		group.Go(func() {
			for c.transferNext(ctx, c.inputs, "inputs", c.fetch) {
			}
		})
		group.Go(func() {
			for c.transferNext(ctx, c.collections, "results", c.collect) {
			}
		})
		group.Go(func() {
			for c.transferNext(ctx, c.uploads, "files", c.collect) {
			}
		})
	}
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.poll(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	shutDown()
	group.Wait()
}

// newQueue returns a queue whose objects wait longer after each error.
func (c *Controller) newQueue() workqueue.TypedRateLimitingInterface[target] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[target](c.Interval/5, 12*c.Interval))
}

// handler returns a handler that queues the objects of a kind when they change.
func (c *Controller) handler(kind kinds.Kind) cache.ResourceEventHandler {
	add := func(object any) {
		if object, ok := object.(*unstructured.Unstructured); ok {
			c.queue.Add(targetOf(kind, object))
			c.checkTransfers(object, object.GetDeletionTimestamp() != nil)
			if c.Changed != nil {
				c.Changed(kinds.Reference{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()})
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
		DeleteFunc: func(object any) { c.deleted(kind, object) },
	}
}

func targetOf(kind kinds.Kind, object *unstructured.Unstructured) target {
	return target{kind: kind, namespace: object.GetNamespace(), name: object.GetName()}
}

// checkTransfers ends the attempts to copy files of an object that was deleted or edited.
func (c *Controller) checkTransfers(object *unstructured.Unstructured, deleted bool) {
	for _, q := range []*transfers{c.inputs, c.collections, c.uploads} {
		q.check(object, deleted)
	}
}

// deleted queues an object that vanished before its job had ended, so that the job is cancelled.
// If the informer missed the deletion, it only warns: the API server may have been restored from
// an old state.
func (c *Controller) deleted(kind kinds.Kind, item any) {
	missed, isMissed := item.(cache.DeletedFinalStateUnknown)
	if isMissed {
		item = missed.Obj
	}
	object, ok := item.(*unstructured.Unstructured)
	if !ok {
		return
	}
	c.checkTransfers(object, true)
	status, err := kinds.StatusOf(object)
	switch {
	case err != nil || kinds.Ended(status.State) || isMissed && status.JobID == "":
	case isMissed:
		c.Log.Warn(fmt.Sprintf("%s %s/%s is gone, and its job was not cancelled: if it still runs, call scancel %s",
			kind.Name, object.GetNamespace(), object.GetName(), status.JobID))
	default:
		c.vanished(targetOf(kind, object), object)
	}
}

// handleNext handles the next object of a queue. It returns false when serve ends.
func (c *Controller) handleNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[target], handle func(context.Context, target) error) bool {
	t, stop := queue.Get()
	if stop {
		return false
	}
	defer queue.Done(t)
	if ctx.Err() != nil {
		return false
	}
	if !c.take(t) {
		queue.AddAfter(t, c.Interval/5)
		return true
	}
	defer c.giveBack(t)
	if err := handle(ctx, t); err != nil {
		c.report(fmt.Sprintf("%s %s/%s", t.kind.Name, t.namespace, t.name), err)
		queue.AddRateLimited(t)
		return true
	}
	queue.Forget(t)
	return true
}

// report logs an error after which the controller tries again. The first error about missing
// rights is a warning, because it concerns every object.
func (c *Controller) report(what string, err error) {
	c.mu.Lock()
	warn := apierrors.IsForbidden(err) && !c.warned
	c.warned = c.warned || warn
	c.mu.Unlock()
	if warn {
		c.Log.Warn(what + ": " + err.Error() + ": have the cluster's administrator apply the output of 'berth slurm-jobs setup'")
		return
	}
	c.Log.Debug(what + ": " + err.Error())
}

// take reserves an object for the caller. It returns false if another worker handles the object.
func (c *Controller) take(t target) bool {
	t.gone = "" // a successor of the same name waits, too
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[t] {
		return false
	}
	c.busy[t] = true
	return true
}

// giveBack ends the reservation of take.
func (c *Controller) giveBack(t target) {
	t.gone = ""
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, t)
}
