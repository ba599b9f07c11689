package partitions

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

const (
	// jobWorkers is the number of pods that are created or updated at the same time.
	jobWorkers = 4
	// lateCreation limits the time between the end of a job and the creation of its pod. A job
	// may end before its partition is known.
	lateCreation = 10 * time.Minute
	// JobContainer is the name of the container of a pod that shows a job.
	JobContainer = "job"
	// JobImage names the container's image, which does not exist. WLM-Operator uses the same name.
	JobImage = "no-image"
)

// Jobs gives access to the objects whose jobs are shown.
type Jobs struct {
	// Object returns an object without its spec, or nil. All lists the objects.
	Object func(kinds.Reference) *unstructured.Unstructured
	All    func() []kinds.Reference
}

// jobPods creates a pod for each job, bound to the Node of the job's partition, and updates its
// status from the status of the object. It is a function of both, so it sends no request for a pod
// that is up to date, and may be called again after a crash at any moment.
type jobPods struct {
	Jobs
	interval time.Duration
	client   core.CoreV1Interface
	pods     *podEnder
	queue    workqueue.TypedRateLimitingInterface[kinds.Reference]
	log      func(string)

	mu sync.Mutex
	// nodes maps partitions to the names of their Nodes.
	nodes map[string]string
	// made holds the UIDs of objects whose pods exist or existed. After the end of a job its
	// pod may be deleted.
	made map[kinds.Reference]types.UID
	// problems holds the reasons why objects have no pod.
	problems map[kinds.Reference]string
}

// jobOf returns the object whose job a pod shows, and its UID. ok is false for all other pods.
func jobOf(pod *corev1.Pod) (ref kinds.Reference, uid types.UID, ok bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return ref, "", false
	}
	for _, kind := range kinds.All() {
		ref := kinds.Reference{Kind: kind, Namespace: pod.Namespace, Name: owner.Name}
		if owner.Kind == kind.Name && owner.APIVersion == kind.Group+"/"+kinds.Version && pod.Name == ref.PodName() {
			return ref, owner.UID, true
		}
	}
	return ref, "", false
}

// run updates pods until ctx ends.
func (j *jobPods) run(ctx context.Context) {
	defer context.AfterFunc(ctx, j.queue.ShutDown)()
	var group sync.WaitGroup
	for range jobWorkers {
		group.Go(func() {
			for j.next(ctx) {
			}
		})
	}
	group.Wait()
}

// setNodes sets the Nodes of partitions. If they have changed, it updates all pods: some may have had
// no Node, or may have gone with it.
func (j *jobPods) setNodes(nodes map[string]string) {
	j.mu.Lock()
	same := maps.Equal(j.nodes, nodes)
	j.nodes = nodes
	j.mu.Unlock()
	if same {
		return
	}
	for _, ref := range j.All() {
		j.queue.Add(ref)
	}
}

// next updates the next pod. It returns false when ctx ends.
func (j *jobPods) next(ctx context.Context) bool {
	ref, stop := j.queue.Get()
	if stop {
		return false
	}
	defer j.queue.Done(ref)
	wait, err := j.show(ctx, ref)
	switch {
	case err != nil && ctx.Err() == nil:
		j.log(fmt.Sprintf("pod %s/%s of a job: %v", ref.Namespace, ref.PodName(), err))
		j.queue.AddRateLimited(ref)
	case wait > 0:
		j.queue.Forget(ref)
		j.queue.AddAfter(ref, wait)
	default:
		j.queue.Forget(ref)
	}
	return true
}

// show makes the pod of an object match the status of the object. If the pod cannot exist yet, it
// returns the time to wait.
func (j *jobPods) show(ctx context.Context, ref kinds.Reference) (wait time.Duration, err error) {
	object := j.Object(ref)
	if object == nil || object.GetDeletionTimestamp() != nil { // the garbage collector deletes the pod
		j.mu.Lock()
		delete(j.made, ref)
		delete(j.problems, ref)
		j.mu.Unlock()
		return 0, nil
	}
	status, err := kinds.StatusOf(object)
	if err != nil {
		return 0, err
	}
	synced := j.pods.synced()
	pod := j.pods.find(ref.Namespace, ref.PodName())
	if pod == nil && !synced {
		return j.interval, nil
	}
	if pod == nil {
		return j.create(ctx, ref, object, status)
	}
	if shown, uid, ok := jobOf(pod); !ok || shown != ref {
		return 0, j.note(ref, errTaken(ref))
	} else if uid != object.GetUID() {
		return j.interval, nil // an earlier object's, which the garbage collector deletes
	}
	j.setMade(ref, object.GetUID())
	want := podStatus(status)
	if ended(pod) || sameJob(pod.Status, want) {
		return 0, nil
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": want})
	if err != nil {
		return 0, err
	}
	_, err = j.client.Pods(ref.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, text, metav1.PatchOptions{FieldManager: component}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return j.interval, nil // deleted: the watch reports it
	}
	return 0, err
}

func (j *jobPods) setMade(ref kinds.Reference, uid types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.made[ref] = uid
	delete(j.problems, ref)
}

// create creates the pod of an object, if its job is in the queue or has just ended.
func (j *jobPods) create(ctx context.Context, ref kinds.Reference, object *unstructured.Unstructured, status kinds.Status) (wait time.Duration, err error) {
	j.mu.Lock()
	made, node := j.made[ref] == object.GetUID(), j.nodes[status.Partition]
	j.mu.Unlock()
	switch {
	case status.JobID == "" || status.Partition == "" || strings.Contains(status.Partition, ","):
		return 0, nil // Slurm has not chosen the partition
	case kinds.Ended(status.State) && (made || endedBefore(status, time.Now().Add(-lateCreation))):
		return 0, nil
	case node == "":
		return 0, nil // setNodes calls again
	}
	pods := j.client.Pods(ref.Namespace)
	_, err = pods.Create(ctx, newJobPod(ref, object.GetUID(), node), metav1.CreateOptions{FieldManager: component})
	if apierrors.IsAlreadyExists(err) {
		other, getErr := pods.Get(ctx, ref.PodName(), metav1.GetOptions{})
		if apierrors.IsNotFound(getErr) {
			return j.interval, nil
		}
		if getErr != nil {
			return 0, getErr
		}
		shown, uid, ok := jobOf(other)
		if ok && shown == ref && (uid != object.GetUID() || j.pods.serves(other.Spec.NodeName)) {
			return j.interval, nil // it is an earlier object's, or the watch has not reported it
		}
		return 0, j.note(ref, errTaken(ref))
	}
	if err != nil {
		return 0, j.note(ref, fmt.Errorf("create pod %s, whose log is the output: %w", ref.PodName(), err))
	}
	j.setMade(ref, object.GetUID())
	return 0, nil
}

// errTaken returns the error for an object if another pod has the name of its pod.
func errTaken(ref kinds.Reference) error {
	return fmt.Errorf("pod %s exists, and is not the pod of this job, so 'kubectl logs' cannot show the output: delete the pod", ref.PodName())
}

// note keeps the reason why an object has no pod, and returns it.
func (j *jobPods) note(ref kinds.Reference, problem error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.problems[ref] = problem.Error()
	return problem
}

// endedBefore reports whether a job ended before a time, or at an unknown time.
func endedBefore(status kinds.Status, limit time.Time) bool {
	end, err := time.Parse(time.RFC3339, status.Ended)
	return err != nil || end.Before(limit)
}

// newJobPod returns the pod that shows the job of an object. It runs nothing, asks for nothing, and
// stays where it is while its Node is not ready.
func newJobPod(ref kinds.Reference, uid types.UID, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: ref.PodName(), Namespace: ref.Namespace, Labels: map[string]string{cluster.ManagedByLabel: component},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: ref.Kind.Group + "/" + kinds.Version, Kind: ref.Kind.Name, Name: ref.Name, UID: uid, Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To(int64(0)),
			AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			// A namespace may admit only pods with these settings.
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: JobContainer, Image: JobImage,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}
