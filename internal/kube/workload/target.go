package workload

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// target is an applied object whose pods are followed.
type target struct {
	object Object
	// finite targets end by themselves, and decide the result.
	finite bool
	// pod is set for a bare pod, job for a Job.
	pod, job bool
	// template is the specification of a controller's pods.
	template corev1.PodSpec
	// single reports whether the pods run one after the other, with one container each.
	single bool
	done   bool
	// seen reports whether the API server has sent the object. gone reports whether the
	// object does not exist.
	seen, gone bool
	// state is the last known state of a Job.
	state *batchv1.Job
	// lastCode is the exit code of the container that failed last.
	lastCode int
	// lastFailure names the pod that failed last, and the reason.
	lastFailure string
	// pods holds the pods that were seen and whose deletion was not. awaited is the time since
	// when a failed Job waits for the last states of deleted pods, or zero.
	pods    map[types.UID]bool
	awaited time.Time
}

// targets returns the targets among objects. It returns an error for an object that cannot
// be decoded.
func targets(objects []Object) ([]*target, error) {
	var found []*target
	for _, object := range objects {
		t, err := newTarget(object)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", object.Name(), err)
		}
		if t != nil {
			found = append(found, t)
		}
	}
	return found, nil
}

func newTarget(object Object) (*target, error) {
	switch kind := object.GroupVersionKind(); kind.Group + "/" + kind.Kind {
	case "/Pod":
		var pod corev1.Pod
		if err := fromUnstructured(object.Unstructured, &pod); err != nil {
			return nil, err
		}
		return &target{object: object, pod: true, single: containers(pod.Spec) == 1,
			finite: pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && pod.Spec.RestartPolicy != ""}, nil
	case "batch/Job":
		var job batchv1.Job
		if err := fromUnstructured(object.Unstructured, &job); err != nil {
			return nil, err
		}
		parallel := job.Spec.Parallelism != nil && *job.Spec.Parallelism > 1
		return &target{object: object, job: true, finite: true, template: job.Spec.Template.Spec,
			single: !parallel && containers(job.Spec.Template.Spec) == 1}, nil
	case "apps/Deployment", "apps/StatefulSet", "apps/DaemonSet", "apps/ReplicaSet":
		// All four kinds have spec.template.
		var replicas appsv1.ReplicaSet
		fields, _, err := unstructured.NestedMap(object.Object, "spec")
		if err != nil {
			return nil, err
		}
		part := map[string]any{"spec": map[string]any{"template": fields["template"]}}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(part, &replicas); err != nil {
			return nil, err
		}
		return &target{object: object, template: replicas.Spec.Template.Spec}, nil
	}
	return nil, nil
}

func containers(spec corev1.PodSpec) int { return len(spec.InitContainers) + len(spec.Containers) }

// owns reports whether a pod belongs to the target. Labels are no proof: in a namespace with
// several users, pods of others may have the same.
func (t *target) owns(pod *corev1.Pod) bool {
	if pod.Namespace != t.object.GetNamespace() {
		return false
	}
	switch {
	case t.pod:
		return pod.UID == t.object.GetUID()
	case t.object.GetKind() == "Deployment":
		// A user of an existing cluster may lack the right to read ReplicaSets. The Deployment
		// controller names them after the Deployment and the hash that their pods carry.
		owner := metav1.GetControllerOf(pod)
		return owner != nil && owner.Kind == "ReplicaSet" &&
			owner.Name == t.object.GetName()+"-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	default:
		return ownedBy(pod, t.object.GetUID())
	}
}

func ownedBy(pod *corev1.Pod, uid types.UID) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == uid })
}

func fromUnstructured(object *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
}
