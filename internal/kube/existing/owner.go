package existing

import (
	"context"
	"fmt"
	"math"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/workload"
)

// jobResource is the resource of owners.
var jobResource = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

// Labels of an owner and of everything it owns.
const (
	labelJob      = "slurm.berth.dev/job"
	labelCluster  = "slurm.berth.dev/cluster"
	labelRestarts = "slurm.berth.dev/restarts"
	// labelRun marks the pods that are spread over the hosts of a job.
	labelRun = "berth.dev/run"
)

// Run describes the run that an owner is for. Outside Slurm, all fields are empty.
type Run struct {
	// Job is Slurm's job number, and Cluster the name of the Slurm cluster. Restarts counts
	// the requeues of the job.
	Job, Cluster, Restarts string
}

// Owner is a Job without pods that owns all objects of a run. When it is deleted, or its
// time is over, the cluster's garbage collector deletes them, even if no berth is left.
//
// Only Jobs and Pods have a deadline that the cluster itself enforces. Parallelism 0 makes
// no pod; in a suspended Job, the deadline would not run (Kubernetes 1.36).
type Owner struct {
	Namespace, Name string
	UID             types.UID
	client          *workload.Client
	// created is when this host created the owner. Deadlines count from it, so that
	// the clocks of this host and the cluster may differ.
	created time.Time
}

// CreateOwner creates the owner of a run, which expires at the given time.
func (c *Cluster) CreateOwner(ctx context.Context, run Run, expires time.Time) (*Owner, error) {
	o := &Owner{Namespace: c.Namespace, client: c.Client, created: time.Now()}
	prefix := "berth-"
	if run.Job != "" {
		prefix += run.Job + "-"
	}
	job := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: prefix, Namespace: c.Namespace, Labels: run.labels()},
		Spec: batchv1.JobSpec{
			Parallelism: new(int32), TTLSecondsAfterFinished: new(int32), ActiveDeadlineSeconds: o.deadline(expires),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "none", Image: "none"}},
			}},
		},
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(job)
	if err != nil {
		return nil, err
	}
	created, err := c.Client.Dynamic().Resource(jobResource).Namespace(c.Namespace).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create the Job that is to own the run's objects: %w", err)
	}
	o.Name, o.UID = created.GetName(), created.GetUID()
	return o, nil
}

func (r Run) labels() map[string]string {
	labels := map[string]string{}
	for key, value := range map[string]string{labelJob: r.Job, labelCluster: r.Cluster, labelRestarts: r.Restarts} {
		if value != "" {
			labels[key] = value
		}
	}
	return labels
}

// deadline returns the seconds from the creation of the owner to a time, and at least 1.
func (o *Owner) deadline(expires time.Time) *int64 {
	seconds := max(1, int64(math.Ceil(expires.Sub(o.created).Seconds())))
	return &seconds
}

// Adopt makes the owner own the objects, and gives them the labels of the run.
func (o *Owner) Adopt(objects []workload.Object, run Run) {
	for _, object := range objects {
		// Without blockOwnerDeletion, no right on the owner's finalizers is needed.
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: o.Name, UID: o.UID}})
		labels := object.GetLabels()
		for key, value := range run.labels() {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[key] = value
		}
		object.SetLabels(labels)
	}
	o.client.Own(o.UID)
}

// Move changes the time when the owner expires.
func (o *Owner) Move(ctx context.Context, expires time.Time) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"activeDeadlineSeconds":%d}}`, o.UID, *o.deadline(expires))
	_, err := o.client.Dynamic().Resource(jobResource).Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("move the deadline of the Job %s: %w", o.Name, err)
	}
	return nil
}

// Exists reports whether the owner exists and is not being deleted.
func (o *Owner) Exists(ctx context.Context) (bool, error) {
	found, err := o.client.Dynamic().Resource(jobResource).Namespace(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && found.GetUID() == o.UID && found.GetDeletionTimestamp() == nil, err
}

// Contact makes a request for an owner, so that the next request needs no new connection. It
// takes no longer than limit.
func Contact(client *workload.Client, namespace, name string, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _ = client.Dynamic().Resource(jobResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{}) // only the connection counts
}

// Delete deletes the owner. The garbage collector then deletes what it owns.
func (o *Owner) Delete(ctx context.Context) error {
	return Delete(ctx, o.client, o.Namespace, o.Name, o.UID)
}

// deletePause is the time between two attempts of DeleteRetrying.
const deletePause = time.Second

// DeleteRetrying repeats Delete until it succeeds or ctx ends. It then returns the last error.
func DeleteRetrying(ctx context.Context, client *workload.Client, namespace, name string, uid types.UID) error {
	var last error
	for {
		err := Delete(ctx, client, namespace, name, uid)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // otherwise the error only says that ctx has ended
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(deletePause):
		}
	}
}

// Delete deletes an owner that another process has created.
func Delete(ctx context.Context, client *workload.Client, namespace, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := client.Dynamic().Resource(jobResource).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background,
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the Job %s, which owns the run's objects: %w", name, err)
	}
	return nil
}
