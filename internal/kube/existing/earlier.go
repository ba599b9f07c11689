package existing

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/workload"
)

const (
	// earlierLimit bounds the wait for objects of an earlier start of the job. It is longer
	// than the default grace period of a pod.
	earlierLimit = 45 * time.Second
	earlierPause = 100 * time.Millisecond
)

// RemoveEarlier deletes what earlier starts of a requeued job have left, and waits until
// the names of the objects are free again. It does nothing for the first start of a job.
func (c *Cluster) RemoveEarlier(ctx context.Context, run Run, objects []workload.Object) error {
	if run.Job == "" || run.Restarts == "" {
		return nil
	}
	selector := fmt.Sprintf("%s=%s,%s!=%s", labelJob, run.Job, labelRestarts, run.Restarts)
	if run.Cluster != "" {
		selector += fmt.Sprintf(",%s=%s", labelCluster, run.Cluster)
	}
	owners, err := c.Client.Dynamic().Resource(jobResource).Namespace(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("look for objects of earlier starts of job %s: %w", run.Job, err)
	}
	removed := map[types.UID]bool{}
	for _, owner := range owners.Items {
		if len(owner.GetOwnerReferences()) > 0 {
			continue // a Job of the manifests
		}
		if err := Delete(ctx, c.Client, c.Namespace, owner.GetName(), owner.GetUID()); err != nil {
			return err
		}
		removed[owner.GetUID()] = true
	}
	if len(removed) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, earlierLimit)
	defer cancel()
	for _, object := range objects {
		for c.belongsTo(ctx, object, removed) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait until %s of an earlier start of job %s is gone: %w", object.Name(), run.Job, context.Cause(ctx))
			case <-time.After(earlierPause):
			}
		}
	}
	return nil
}

// belongsTo reports whether an object of that name exists, and one of the owners owns it. It
// also returns true if the API server does not answer.
func (c *Cluster) belongsTo(ctx context.Context, object workload.Object, owners map[types.UID]bool) bool {
	mapping, err := c.Client.Mapping(object.GroupVersionKind())
	if err != nil || object.GetName() == "" {
		return false
	}
	found, err := c.Client.Dynamic().Resource(mapping.Resource).Namespace(c.Namespace).Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	for _, owner := range found.GetOwnerReferences() {
		if owners[owner.UID] {
			return true
		}
	}
	return false
}
