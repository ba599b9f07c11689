package wishes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Reference names an object above a pod.
type Reference struct {
	schema.GroupVersionResource
	Kind, Namespace, Name string
}

// Get reads an object. It returns nil without an error if the object or its kind does not exist.
type Get func(ctx context.Context, of Reference) (*unstructured.Unstructured, error)

// resources lists the objects above pods that may have wishes or the size of a gang.
var resources = map[schema.GroupKind]schema.GroupVersionResource{
	{Group: "apps", Kind: "Deployment"}:                          {Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Kind: "ReplicaSet"}:                          {Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Kind: "StatefulSet"}:                         {Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "batch", Kind: "Job"}:                                {Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "jobset.x-k8s.io", Kind: "JobSet"}:                   {Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"},
	{Group: "leaderworkerset.x-k8s.io", Kind: "LeaderWorkerSet"}: {Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"},
	{Group: "scheduling.k8s.io", Kind: "PodGroup"}:               {Group: "scheduling.k8s.io", Version: "v1alpha2", Resource: "podgroups"},
	{Group: "scheduling.k8s.io", Kind: "Workload"}:               {Group: "scheduling.k8s.io", Version: "v1alpha2", Resource: "workloads"},
	{Group: "scheduling.x-k8s.io", Kind: "PodGroup"}:             {Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: "podgroups"},
}

// deepest is the largest number of controllers that are read above a pod.
const deepest = 4

// Owners returns the objects above a pod, for Of: the PodGroup of scheduling.k8s.io that the pod
// names, then its controllers upwards, then the Workload of the PodGroup, or the PodGroup of
// scheduler-plugins. slurm-bridge reads annotations in this order.
func Owners(ctx context.Context, get Get, pod *v1.Pod) ([]Owner, error) {
	r := owners{ctx: ctx, get: get, pod: pod}
	var workload, scheduled string
	switch group := pod.Spec.SchedulingGroup; {
	case group != nil && group.PodGroupName != nil:
		if o := r.add("scheduling.k8s.io", "PodGroup", *group.PodGroupName, ""); o != nil {
			workload, _, _ = unstructured.NestedString(o.Object, "spec", "podGroupTemplateRef", "workload", "workloadName")
		}
	case pod.Labels[podGroup] != "":
		scheduled = pod.Labels[podGroup]
	}
	above := metav1.GetControllerOf(pod)
	for range deepest {
		if above == nil {
			break
		}
		o := r.add(group(above.APIVersion), above.Kind, above.Name, above.UID)
		if o == nil {
			break
		}
		above = metav1.GetControllerOf(o)
	}
	if workload != "" {
		r.add("scheduling.k8s.io", "Workload", workload, "")
	}
	if scheduled != "" {
		r.add("scheduling.x-k8s.io", "PodGroup", scheduled, "")
	}
	return r.all, r.err
}

func group(version string) string {
	parsed, _ := schema.ParseGroupVersion(version) // the API server has checked it
	return parsed.Group
}

type owners struct {
	ctx context.Context
	get Get
	pod *v1.Pod
	all []Owner
	err error
}

// add adds an object, and returns it. If uid is not empty, add ignores an object with another UID,
// which is a later one of the same name.
func (r *owners) add(group, kind, name string, uid types.UID) *unstructured.Unstructured {
	resource, known := resources[schema.GroupKind{Group: group, Kind: kind}]
	if !known || r.err != nil {
		return nil
	}
	object, err := r.get(r.ctx, Reference{GroupVersionResource: resource, Kind: kind, Namespace: r.pod.Namespace, Name: name})
	if err != nil {
		r.err = fmt.Errorf("read %s %s/%s: %w", kind, r.pod.Namespace, name, err)
	}
	if err != nil || object == nil || uid != "" && object.GetUID() != uid {
		return nil
	}
	owner := Owner{Kind: kind, Name: name, Annotations: object.GetAnnotations()}
	switch kind {
	case "PodGroup":
		least, _, _ := unstructured.NestedInt64(object.Object, "spec", "minMember")
		native, _, _ := unstructured.NestedInt64(object.Object, "spec", "schedulingPolicy", "gang", "minCount")
		owner.Gang = int(max(least, native))
	case "JobSet":
		owner.Gang, owner.Part = ofJobSet(object, r.pod.Labels[jobSetPart])
	}
	r.all = append(r.all, owner)
	return object
}

// ofJobSet returns the number of pods that a JobSet starts together. A JobSet with an order starts
// one replicated job after the other: then ofJobSet counts only the pods of the replicated job part,
// and returns its name.
func ofJobSet(set *unstructured.Unstructured, part string) (pods int, replicatedJob string) {
	order, _, _ := unstructured.NestedString(set.Object, "spec", "startupPolicy", "startupPolicyOrder")
	ordered := order == "InOrder"
	jobs, _, _ := unstructured.NestedSlice(set.Object, "spec", "replicatedJobs")
	sizes := map[string]int{}
	for _, item := range jobs {
		job, _ := item.(map[string]any)
		name, _, _ := unstructured.NestedString(job, "name")
		before, _, _ := unstructured.NestedSlice(job, "dependsOn")
		ordered = ordered || len(before) > 0
		number := func(fields ...string) int64 {
			n, found, _ := unstructured.NestedInt64(job, fields...)
			if !found {
				return 1
			}
			return max(0, min(n, greatestGang+1))
		}
		parallel := number("template", "spec", "parallelism")
		if _, found, _ := unstructured.NestedInt64(job, "template", "spec", "completions"); found {
			parallel = min(parallel, number("template", "spec", "completions"))
		}
		sizes[name] = int(number("replicas") * parallel)
		pods += sizes[name]
	}
	if ordered {
		return sizes[part], part
	}
	return pods, ""
}
