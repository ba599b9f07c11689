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

// jobResource is the API resource of owners, which are Jobs.
var jobResource = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

// Labels of an owner and of everything it owns.
const (
	labelJob      = "slurm.berth.dev/job"
	labelCluster  = "slurm.berth.dev/cluster"
	labelRestarts = "slurm.berth.dev/restarts"
	// labelRun marks the pods that are spread over the hosts of a job.
	labelRun = "berth.dev/run"
)

// SlurmJob identifies one start of the Slurm job that a run belongs to. Outside Slurm, all
// fields are empty.
type SlurmJob struct {
	// ID is the job ID, Cluster the name of the Slurm cluster, and Restarts the number of times
	// that the job was requeued, which is empty for its first start.
	ID, Cluster, Restarts string
}

// Owner is a Job without pods that owns all objects of a run. When the Job is deleted or
// reaches its deadline, the garbage collector of the cluster deletes the objects, even if no
// process of berth is left.
//
// It is a Job because only Jobs and Pods have a deadline that the cluster itself enforces. Its
// parallelism is 0, so that it creates no pod. A suspended Job would have none either, but its
// deadline would not count (Kubernetes 1.36).
type Owner struct {
	Namespace, Name string
	UID             types.UID
	client          *workload.Client
	// created is the time of the creation by the clock of this host. Deadlines count from
	// the creation, so the clock of the cluster does not matter.
	created time.Time
}

// CreateOwner creates the owner of a run. The owner expires at the given time.
func (c *Cluster) CreateOwner(ctx context.Context, slurmJob SlurmJob, expires time.Time) (*Owner, error) {
	o := &Owner{Namespace: c.Namespace, client: c.Client, created: time.Now()}
	prefix := "berth-"
	if slurmJob.ID != "" {
		prefix += slurmJob.ID + "-"
	}
	job := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: prefix, Namespace: c.Namespace, Labels: slurmJob.labels()},
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

// labels returns the labels of an owner and of its objects.
func (j SlurmJob) labels() map[string]string {
	labels := map[string]string{}
	for key, value := range map[string]string{labelJob: j.ID, labelCluster: j.Cluster, labelRestarts: j.Restarts} {
		if value != "" {
			labels[key] = value
		}
	}
	return labels
}

// deadline returns activeDeadlineSeconds for an owner that expires at the given time: the
// seconds since its creation, and at least 1.
func (o *Owner) deadline(expires time.Time) *int64 {
	seconds := max(1, int64(math.Ceil(expires.Sub(o.created).Seconds())))
	return &seconds
}

// Adopt makes the owner own the objects, and adds the labels of the Slurm job to them. The
// client of the cluster then refuses to change objects that the owner does not own.
func (o *Owner) Adopt(objects []workload.Object, job SlurmJob) {
	for _, object := range objects {
		// blockOwnerDeletion would need the right to update the owner's finalizers.
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: o.Name, UID: o.UID}})
		labels := object.GetLabels()
		for key, value := range job.labels() {
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

// Contact requests an owner and ignores the answer, so that the client's connection to the API
// server stays open. It returns after limit at the latest.
func Contact(client *workload.Client, namespace, name string, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _ = client.Dynamic().Resource(jobResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{}) // only the connection counts
}

// Delete deletes the owner, and the garbage collector then deletes its objects. It succeeds if
// the owner does not exist.
func (o *Owner) Delete(ctx context.Context) error {
	return Delete(ctx, o.client, o.Namespace, o.Name, o.UID)
}

// deletePause is the time between two attempts of DeleteRetrying.
const deletePause = time.Second

// DeleteRetrying repeats Delete until it succeeds or ctx ends, and then returns the last error.
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

// Delete works like [Owner.Delete], for an owner that another process has created.
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
