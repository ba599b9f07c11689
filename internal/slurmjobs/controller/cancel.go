package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

// endWithoutJob sets the status of an object that was killed before the number of its job was
// stored. It cancels a held job, which may exist.
func (c *Controller) endWithoutJob(ctx context.Context, t target, object *unstructured.Unstructured, status kinds.Status) error {
	if err := c.cancel(ctx, object); err != nil {
		return err
	}
	next := status
	next.State, next.Message = "CANCELLED", "killed before a job was submitted"
	return c.writeStatus(ctx, t, object, status, next)
}

// errLost reports a job whose number is in the status of its object, and that cannot be found.
var errLost = errors.New("no record of it is in --state-dir: was this controller started with another folder? " +
	"If the folder is lost, call scancel, and 'berth slurm-jobs remove' without a controller")

// checkLost returns errLost if the status of an object names a job that may still run.
func (c *Controller) checkLost(object *unstructured.Unstructured) error {
	status, err := kinds.StatusOf(object)
	if err != nil || status.JobID == "" {
		return err
	}
	c.mu.Lock()
	state := c.states[string(object.GetUID())]
	c.mu.Unlock()
	if state.ID == status.JobID && kinds.Ended(state.State) {
		return nil
	}
	return fmt.Errorf("job %s: %w", status.JobID, errLost)
}

// kill cancels the job of an object whose spec asks for it, once: a job may take minutes to
// end.
func (c *Controller) kill(ctx context.Context, object *unstructured.Unstructured) error {
	uid := object.GetUID()
	c.mu.Lock()
	done := c.killed[uid]
	c.mu.Unlock()
	if done {
		return nil
	}
	if err := c.cancel(ctx, object); err != nil {
		return err
	}
	c.mu.Lock()
	c.killed[uid] = true
	c.mu.Unlock()
	return nil
}

// cancel cancels the job of an object. It gets the job's number from Slurm.Find, not from the
// status: whoever may write statuses could name any job of the user there. It returns an error
// if the status names a job that may still run and Slurm.Find finds none.
func (c *Controller) cancel(ctx context.Context, object *unstructured.Unstructured) error {
	id, found, err := c.Slurm.Find(ctx, string(object.GetUID()))
	if err != nil {
		return err
	}
	if !found {
		if err := c.checkLost(object); err != nil {
			return fmt.Errorf("cancel the job: %w", err)
		}
		return nil
	}
	if err := c.Slurm.Cancel(ctx, id); err != nil {
		return fmt.Errorf("cancel job %s: %w", id, err)
	}
	c.events.Eventf(object, corev1.EventTypeNormal, "Cancelled", "Slurm job %s", id)
	return nil
}

// cancelDeleted cancels the job of a deleted object, and removes the finalizer.
func (c *Controller) cancelDeleted(ctx context.Context, t target, object *unstructured.Unstructured) error {
	if !hasFinalizer(object) {
		return nil
	}
	status, err := kinds.StatusOf(object)
	if err != nil {
		return err
	}
	if !kinds.Ended(status.State) {
		// The status says first that the job was cancelled: once its record is removed,
		// it cannot be found.
		next := status
		err := c.cancel(ctx, object)
		if err != nil {
			next.Message = err.Error()
		} else {
			next.State, next.Message = "CANCELLED", "deleted"
		}
		if next != status {
			err = errors.Join(err, c.writeStatus(ctx, t, object, status, next))
		}
		return err // the informer will soon report this version
	}
	return c.finalize(ctx, t, object)
}

// finalize removes the records of an object whose job has ended, and then the finalizer.
func (c *Controller) finalize(ctx context.Context, t target, object *unstructured.Unstructured) error {
	c.mu.Lock()
	delete(c.killed, object.GetUID())
	c.mu.Unlock()
	if !hasFinalizer(object) {
		return nil
	}
	if err := c.Forget(string(object.GetUID())); err != nil {
		return err
	}
	_, err := RemoveFinalizer(ctx, c.client, t.kind, object)
	return err
}

// vanished queues an object that is gone although its job has not ended, so that the job is
// cancelled: somebody has removed the finalizer.
func (c *Controller) vanished(t target, object *unstructured.Unstructured) {
	t.gone = object.GetUID()
	c.queue.Add(t)
}

// cancelGone cancels the job of an object that is gone.
func (c *Controller) cancelGone(ctx context.Context, uid types.UID) error {
	id, found, err := c.Slurm.Find(ctx, string(uid))
	if err != nil {
		return err
	}
	if found {
		c.Log.Info("cancel job "+id+": its object is gone", "object", uid)
		if err := c.Slurm.Cancel(ctx, id); err != nil {
			return fmt.Errorf("cancel job %s: %w", id, err)
		}
	}
	return c.Forget(string(uid))
}
