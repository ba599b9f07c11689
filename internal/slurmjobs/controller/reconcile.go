package controller

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

// reconcile takes an object through one or more of these steps:
//
//	no job -> held job -> its number stored -> job released -> states followed -> ended
//
// After a crash between two steps, the next call continues. The UID of the object finds a held
// job, and a job is released only after its number was stored.
func (c *Controller) reconcile(ctx context.Context, t target) error {
	if t.gone != "" {
		return c.cancelGone(ctx, t.gone)
	}
	item, exists, err := c.informer[t.kind].GetStore().GetByKey(cache.NewObjectName(t.namespace, t.name).String())
	if err != nil || !exists {
		return err
	}
	seen := item.(*unstructured.Unstructured)
	status, err := kinds.StatusOf(seen)
	if err != nil {
		return err
	}
	switch {
	case seen.GetDeletionTimestamp() != nil:
		return c.cancelDeleted(ctx, t, seen)
	case kinds.Ended(status.State):
		if status.Results == kinds.Collecting {
			c.collectionsOf(t.kind).add(t, seen)
			return nil // the collection needs the records
		}
		return c.finalize(ctx, t, seen)
	case c.lacksInputs(seen, status):
		c.inputs.add(t, seen)
		return nil
	case !status.Released:
		c.submissions.Add(t)
		return nil
	}
	var problem error
	if kinds.Killed(seen) {
		problem = c.kill(ctx, seen)
	}
	return errors.Join(problem, c.follow(ctx, t, seen, status, problem))
}

// read reads an object and its status from the API server. The object is nil if it was deleted.
func (c *Controller) read(ctx context.Context, t target) (*unstructured.Unstructured, kinds.Status, error) {
	object, err := t.resource(c.client).Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, kinds.Status{}, nil
	}
	if err != nil {
		return nil, kinds.Status{}, err
	}
	status, err := kinds.StatusOf(object)
	return object, status, err
}
