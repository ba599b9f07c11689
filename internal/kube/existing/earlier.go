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
	// earlierLimit bounds the wait until the objects of an earlier start of the job are
	// deleted. It is longer than the default grace period of a pod, 30 s.
	earlierLimit = 45 * time.Second
	// earlierPause is the time between two checks of an object.
	earlierPause = 100 * time.Millisecond
)

// RemoveEarlier deletes the objects of earlier starts of a requeued job, and waits until none
// of them has the name of an object to apply. It does nothing for the first start of a job.
func (c *Cluster) RemoveEarlier(ctx context.Context, job SlurmJob, objects []workload.Object) error {
	if job.ID == "" || job.Restarts == "" {
		return nil
	}
	selector := fmt.Sprintf("%s=%s,%s!=%s", labelJob, job.ID, labelRestarts, job.Restarts)
	if job.Cluster != "" {
		selector += fmt.Sprintf(",%s=%s", labelCluster, job.Cluster)
	}
	owners, err := c.Client.Dynamic().Resource(jobResource).Namespace(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("look for objects of earlier starts of job %s: %w", job.ID, err)
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
				return fmt.Errorf("wait until %s of an earlier start of job %s is gone: %w", object.Name(), job.ID, context.Cause(ctx))
			case <-time.After(earlierPause):
			}
		}
	}
	return nil
}

// belongsTo reports whether the cluster has an object of the same kind and name that one of
// the owners owns. It also returns true if the API server answers with another error than that
// the object does not exist, or not at all.
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
