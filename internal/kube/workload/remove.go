package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
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
// they and their pods are gone. It waits no longer than their pods have to end, for a
// finalizer may keep an object for good. If ctx ends, it still deletes the rest, but
// does not wait.
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
	longest := int64(corev1.DefaultTerminationGracePeriodSeconds)
	for _, object := range created {
		longest = max(longest, longestGrace(object.Object))
	}
	ctx, stop := context.WithTimeout(ctx, time.Duration(longest)*time.Second+endMargin)
	defer stop()
	for _, object := range created {
		if err := c.awaitGone(ctx, object); err != nil {
			problems = append(problems, err)
			break // the others have had as long
		}
	}
	return errors.Join(problems...)
}

// longestGrace returns the longest grace period of pods in an object, in seconds. A
// custom resource can have pod templates anywhere.
func longestGrace(value any) (seconds int64) {
	switch value := value.(type) {
	case map[string]any:
		seconds, _ = value["terminationGracePeriodSeconds"].(int64)
		for _, field := range value {
			seconds = max(seconds, longestGrace(field))
		}
	case []any:
		for _, item := range value {
			seconds = max(seconds, longestGrace(item))
		}
	}
	return seconds
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
