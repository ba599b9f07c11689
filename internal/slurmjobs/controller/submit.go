package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// submitAndRelease submits the job of an object, unless it has one, and releases it. It reads
// the object from the API server: the informer's copy lacks the script and may be old.
func (c *Controller) submitAndRelease(ctx context.Context, t target) error {
	object, status, err := c.read(ctx, t)
	if object == nil || err != nil {
		return err
	}
	if object.GetDeletionTimestamp() != nil || status.Released || isRejected(object, status) || c.lacksInputs(object, status) {
		return nil // the informer will soon report this version
	}
	if status.JobID == "" {
		if object, status, err = c.submit(ctx, t, object, status); err != nil || status.JobID == "" {
			return c.reportProblem(ctx, t, object, err)
		}
	}
	if err := c.release(ctx, object); err != nil {
		return c.reportProblem(ctx, t, object, fmt.Errorf("release the job: %w", err))
	}
	next := status
	next.Released, next.Message = true, ""
	if next.State == "" || next.State == kinds.Waiting {
		next.State = "PENDING"
	}
	return c.writeStatus(ctx, t, object, status, next)
}

// submit submits a held job for an object, or finds the job of an earlier call, and stores its
// number. It returns the stored object and its status. An object that needs no job has no
// number in its status.
func (c *Controller) submit(ctx context.Context, t target, object *unstructured.Unstructured, status kinds.Status) (*unstructured.Unstructured, kinds.Status, error) {
	request, err := c.permitted(ctx, object)
	if err != nil {
		return object, status, err
	}
	if request.Kill {
		return object, status, c.endWithoutJob(ctx, t, object, status)
	}
	version := strconv.FormatInt(object.GetGeneration(), 10)
	id, err := c.Slurm.Submit(ctx, string(object.GetUID()), version, func() (queue.Job, error) {
		job, err := c.job(ctx, object, request)
		if err == nil {
			object, err = c.addFinalizer(ctx, t, object)
		}
		return job, err
	})
	if refused := new(queue.Refused); errors.As(err, &refused) && !refused.Full {
		return object, status, &rejection{fmt.Errorf("Slurm rejected the job: %w", err)}
	}
	if err != nil {
		return object, status, err
	}
	next := status
	next.JobID, next.State, next.Message, next.ObservedGeneration = id, kinds.Waiting, "", object.GetGeneration()
	stored, err := c.storeJob(ctx, t, object, status, next)
	if err != nil {
		return object, status, err
	}
	c.events.Eventf(stored, corev1.EventTypeNormal, "Submitted", "Slurm job %s", id)
	for _, unused := range request.Unused {
		c.events.Eventf(stored, corev1.EventTypeNormal, "NoEffect", "%s", unused)
	}
	for _, warning := range request.Warnings {
		c.events.Eventf(stored, corev1.EventTypeWarning, "Differs", "%s", warning)
	}
	return stored, next, nil
}

// permitted returns the request of an object, or a rejection if the object gets no job.
func (c *Controller) permitted(ctx context.Context, object *unstructured.Unstructured) (kinds.Request, error) {
	if c.Allow != nil {
		if err := c.Allow(ctx, object); errors.Is(err, trust.ErrForbidden) {
			return kinds.Request{}, &rejection{err}
		} else if err != nil {
			return kinds.Request{}, err
		}
	}
	request, err := kinds.Read(object)
	if err != nil {
		return request, &rejection{err}
	}
	return request, nil
}

// job returns the job of an object. Its errors are rejections, unless they are temporary.
func (c *Controller) job(ctx context.Context, object *unstructured.Unstructured, request kinds.Request) (queue.Job, error) {
	job, err := c.Prepare(ctx, object, request)
	if err != nil && !temporary(err) {
		err = &rejection{err}
	}
	return job, err
}

// isRejected reports whether this version of an object was rejected.
func isRejected(object *unstructured.Unstructured, status kinds.Status) bool {
	return status.State == kinds.Rejected && status.ObservedGeneration == object.GetGeneration()
}

// storeJob stores the number of a held job in its object, unless the object has changed since it
// was read. If another controller has stored another job, because this one lost the lease,
// storeJob cancels the job of this controller.
func (c *Controller) storeJob(ctx context.Context, t target, object *unstructured.Unstructured, was, next kinds.Status) (*unstructured.Unstructured, error) {
	stored, err := c.patchStatus(ctx, t, object, was, next, object.GetResourceVersion())
	switch {
	case apierrors.IsNotFound(err):
		c.vanished(t, object)
		return nil, err
	case apierrors.IsConflict(err):
		now, getErr := t.resource(c.client).Get(ctx, t.name, metav1.GetOptions{})
		if apierrors.IsNotFound(getErr) || getErr == nil && now.GetUID() != object.GetUID() {
			c.vanished(t, object)
		}
		if getErr != nil {
			return nil, getErr
		}
		status, statusErr := kinds.StatusOf(now)
		if statusErr == nil && now.GetUID() == object.GetUID() && status.JobID != "" && status.JobID != next.JobID {
			if err := c.Slurm.Cancel(ctx, next.JobID); err != nil {
				return nil, err
			}
		}
		return nil, err // reconcile is called again
	case err != nil:
		return nil, err
	}
	status, err := kinds.StatusOf(stored)
	if err == nil && status.JobID != next.JobID {
		err = fmt.Errorf("the definition of %s in this cluster drops status.jobID: apply the output of 'berth slurm-jobs setup'", t.kind.Name)
	}
	return stored, err
}

// Temporary wraps an error of Prepare after which the controller tries again.
type Temporary struct{ Err error }

func (t *Temporary) Error() string { return t.Err.Error() }

// Unwrap returns the wrapped error.
func (t *Temporary) Unwrap() error { return t.Err }

// temporary reports whether an error wraps Temporary, or is an error of the operating system whose
// cause is not the path.
func temporary(err error) bool {
	if marked := new(Temporary); errors.As(err, &marked) {
		return true
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && !slices.Contains([]syscall.Errno{
		syscall.ENOENT, syscall.ENOTDIR, syscall.EISDIR, syscall.EACCES, syscall.EPERM, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.ENXIO,
	}, errno)
}

// rejection wraps an error that means that the object gets no job unless it changes.
type rejection struct{ error }

func (r *rejection) Unwrap() error { return r.error }

// reportProblem writes into the status why an object has no released job. It returns nil for a
// rejection, and otherwise the problem, so that reconcile is called again.
func (c *Controller) reportProblem(ctx context.Context, t target, object *unstructured.Unstructured, problem error) error {
	if problem == nil || ctx.Err() != nil || apierrors.IsConflict(problem) || apierrors.IsNotFound(problem) {
		return problem
	}
	status, err := kinds.StatusOf(object)
	if err != nil {
		return err
	}
	next := status
	next.State, next.Message = kinds.Waiting, kinds.Shorten(problem.Error(), kinds.MaxMessage)
	rejected := new(rejection)
	if errors.As(problem, &rejected) {
		next.State, next.ObservedGeneration = kinds.Rejected, object.GetGeneration()
		problem = nil
	}
	if next == status {
		return problem
	}
	kind, reason := corev1.EventTypeNormal, "Waiting"
	if next.State == kinds.Rejected {
		kind, reason = corev1.EventTypeWarning, "Rejected"
	}
	c.events.Eventf(object, kind, reason, "%s", next.Message)
	return errors.Join(problem, c.writeStatus(ctx, t, object, status, next))
}

// release lets the job of an object start. Like cancel, it does not use the number in the
// status.
func (c *Controller) release(ctx context.Context, object *unstructured.Unstructured) error {
	id, found, err := c.Slurm.Find(ctx, string(object.GetUID()))
	if err != nil {
		return err
	}
	if !found {
		return c.checkLost(object)
	}
	return c.Slurm.Release(ctx, id)
}
