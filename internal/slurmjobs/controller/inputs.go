package controller

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/results"
)

// lacksInputs reports whether an object's inputs are to be copied before its job is submitted. An
// edit of the object may change its inputs.
func (c *Controller) lacksInputs(object *unstructured.Unstructured, status kinds.Status) bool {
	return c.Fetch != nil && status.JobID == "" && kinds.HasInputs(object) && status.Prepared != object.GetGeneration()
}

// fetch copies the inputs of an object, and notes it in the object's status. It returns an error
// after which another attempt is to be made.
func (c *Controller) fetch(ctx context.Context, t target) error {
	object, status, err := c.read(ctx, t)
	if object == nil || err != nil {
		return err
	}
	if object.GetUID() != t.uid || object.GetDeletionTimestamp() != nil || isRejected(object, status) || !c.lacksInputs(object, status) {
		return nil
	}
	request, err := c.permitted(ctx, object)
	if err != nil {
		return c.reportProblem(ctx, t, object, err)
	}
	job, err := c.job(ctx, object, request)
	if err != nil {
		return c.reportProblem(ctx, t, object, err)
	}
	attempting, end := c.begin(ctx, c.inputs, t, object)
	text, err := c.Fetch(attempting, object, request, job)
	end()
	if err != nil && errors.Is(context.Cause(attempting), errChanged) {
		return err
	}
	if final := new(results.Final); errors.As(err, &final) {
		err = &rejection{err}
	}
	if err != nil {
		return c.reportProblem(ctx, t, object, err)
	}
	next := status
	next.State, next.Message, next.Prepared = kinds.Waiting, text, object.GetGeneration()
	c.events.Eventf(object, corev1.EventTypeNormal, "InputsCopied", "%s", text)
	return c.writeStatus(ctx, t, object, status, next)
}
