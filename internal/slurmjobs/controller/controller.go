// Package controller submits exactly one Slurm job for each object in a namespace, and keeps the
// object's status up to date. It reads and writes objects through the API server. Slurm's
// commands belong to package queue, the options that a script may have to package script, and
// the question who may create objects to package trust.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// Finalizer keeps a deleted object until its job is cancelled.
const Finalizer = "berth.dev/slurm-job"

// Slurm submits jobs and reports their states. queue.Client implements it.
type Slurm interface {
	// Submit submits the held job that prepare returns for a version of an object, or finds
	// the job of an earlier call without calling prepare. It returns the job's number.
	Submit(ctx context.Context, uid, version string, prepare func() (queue.Job, error)) (id string, err error)
	// Find returns the number of the job that was submitted for an object, even if the
	// job has ended, until its records are removed.
	Find(ctx context.Context, uid string) (id string, found bool, err error)
	// Release lets a held job start, and Cancel cancels a job. They return nil if the job
	// has ended.
	Release(ctx context.Context, id string) error
	Cancel(ctx context.Context, id string) error
	// States returns the states of jobs, by the UIDs of their objects. jobs maps the UIDs
	// to the numbers of the jobs.
	States(ctx context.Context, jobs map[string]string) (map[string]queue.State, error)
}

// Options configures a Controller.
type Options struct {
	// Config connects to the API server.
	Config *rest.Config
	// Namespace holds the objects. Empty means all namespaces.
	Namespace string
	// LeaseNamespace holds the lease of the leading controller.
	LeaseNamespace string
	// Identity names this process in the lease.
	Identity string
	Slurm    Slurm
	// Forget removes the records of an object whose job has ended.
	Forget func(uid string) error
	// Prepare returns the job for an object. Its errors reject the object, except for
	// temporary errors of a file system and errors that wrap Temporary.
	Prepare func(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error)
	// Allow returns an error if an object gets no job. An error that wraps
	// trust.ErrForbidden rejects the object. After other errors the controller tries again.
	// If Allow is nil, every object gets a job.
	Allow func(ctx context.Context, object *unstructured.Unstructured) error
	// Beside runs while this controller leads, until its context ends. It may be nil.
	Beside func(ctx context.Context)
	// Changed is called for each object when this controller begins to lead, and when the
	// object changes. PodProblem returns the reason why an object has no pod, or "". Either may
	// be nil.
	Changed    func(kinds.Reference)
	PodProblem func(kinds.Reference) string
	// Seal returns a proof for the status that this controller wrote the path of an output. If
	// it is nil, there is no proof.
	Seal func(uid, path string) string
	// Fetch copies the inputs of an object, before its job is submitted. It returns a
	// description of them. The controller calls it again after errors that do not wrap
	// results.Final. If Fetch is nil, Prepare returns an error for objects with inputs.
	Fetch func(ctx context.Context, object *unstructured.Unstructured, request kinds.Request, job queue.Job) (string, error)
	// Collect collects the results of an object whose job has ended, and returns a
	// description of them. The controller calls it again after errors that do not wrap
	// results.Final. A panic of Collect counts as such an error.
	Collect func(ctx context.Context, object *unstructured.Unstructured) (string, error)
	// Interval is the time between two calls of Slurm.States.
	Interval time.Duration
	// As in leaderelection.LeaderElectionConfig. Tests shorten them.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	Log                                       *slog.Logger
}

// Default returns options with defaults, where there are any.
func Default() Options {
	return Options{
		Interval:      5 * time.Second,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	}
}

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
	// inputs holds objects whose inputs are to be copied, and collections those whose results
	// are to be collected.
	inputs, collections *transfers
	events              record.EventRecorder

	mu         sync.Mutex
	busy       map[target]bool        // objects that a worker of either queue handles
	states     map[string]queue.State // result of the last poll that succeeded, by UID
	slurmError string                 // error of the last poll, or ""
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
	c.states, c.slurmError = nil, "" // of an earlier lease
	c.mu.Unlock()
	stopEvents := c.startEvents()
	defer stopEvents()
	c.queue, c.submissions, c.inputs, c.collections = c.newQueue(), c.newQueue(), c.newTransfers(), c.newTransfers()
	shutDown := func() {
		for _, queue := range []workqueue.TypedRateLimitingInterface[target]{c.queue, c.submissions, c.inputs.queue, c.collections.queue} {
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

// poll reads the states of the jobs of all objects with one call of Slurm.States, and queues
// the objects.
func (c *Controller) poll(ctx context.Context) {
	jobs := map[string]string{}
	var following []target
	for kind, informer := range c.informer {
		for _, item := range informer.GetStore().List() {
			object := item.(*unstructured.Unstructured)
			// Most objects have ended, and decoding a status is slow in comparison.
			if state, _, _ := unstructured.NestedString(object.Object, "status", "state"); kinds.Ended(state) {
				continue
			}
			status, err := kinds.StatusOf(object)
			if err != nil || status.JobID == "" {
				continue
			}
			jobs[string(object.GetUID())] = status.JobID
			if status.Released || object.GetDeletionTimestamp() != nil {
				following = append(following, targetOf(kind, object))
			}
		}
	}
	if len(jobs) == 0 {
		return
	}
	states, err := c.Slurm.States(ctx, jobs)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.slurmError = ""
	if err != nil {
		c.slurmError = err.Error()
	} else {
		c.states = states
	}
	c.mu.Unlock()
	for _, t := range following {
		c.queue.Add(t)
	}
}
