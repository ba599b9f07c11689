package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// removePoll is the interval between checks whether an object is gone.
const removePoll = 50 * time.Millisecond

// runsOnce reports whether an object has a result of its run: a Job or a bare pod.
func runsOnce(object Object) bool {
	t, err := newTarget(object)
	return err == nil && t != nil && (t.pod || t.job)
}

// Remove deletes the objects that Apply created, in reverse order, and waits until
// they and their pods are gone. If ctx ends, it still deletes the rest, but does
// not wait.
func (c *Client) Remove(ctx context.Context, objects []Object) error {
	var created []Object
	for _, object := range slices.Backward(objects) {
		if object.Created {
			created = append(created, object)
		}
	}
	var problems []error
	// Send the deletions even when there is no time left to wait.
	ordering, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTimeout)
	defer cancel()
	for _, object := range created {
		if err := c.remove(ordering, object); err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("delete %s: %w", object.Name(), err))
		}
	}
	for _, object := range created {
		if err := c.awaitGone(ctx, object); err != nil {
			problems = append(problems, err)
			break // the others have had as long
		}
	}
	return errors.Join(problems...)
}

func (c *Client) remove(ctx context.Context, object Object) error {
	resource, err := c.resource(object)
	if err != nil {
		return err
	}
	// Do not delete an object that somebody else has created under the same name
	// meanwhile.
	uid, foreground := object.GetUID(), metav1.DeletePropagationForeground
	return resource.Delete(ctx, object.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &foreground,
	})
}

func (c *Client) awaitGone(ctx context.Context, object Object) error {
	resource, err := c.resource(object)
	if err != nil {
		return err
	}
	for {
		found, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && found.GetUID() != object.GetUID():
			return nil
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("wait until %s is gone: %w", object.Name(), err)
		}
		select {
		case <-time.After(removePoll):
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is gone: %w", object.Name(), context.Cause(ctx))
		}
	}
}
