package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkPods checks the pod, or the template of pods, of an object that has one. A
// missing image or volume is not a fault: a webhook of the manifests may add it.
func checkPods(typed runtime.Object) field.ErrorList {
	spec := field.NewPath("spec")
	template := spec.Child("template")
	switch o := typed.(type) {
	case *corev1.Pod:
		return checkContainers(o.Spec, spec)
	case *batchv1.Job:
		return checkJob(o.Spec, spec)
	case *batchv1.CronJob:
		return checkJob(o.Spec.JobTemplate.Spec, spec.Child("jobTemplate", "spec"))
	case *appsv1.Deployment:
		return append(checkSelector(o.Spec.Selector, o.Spec.Template.Labels, template), checkContainers(o.Spec.Template.Spec, template.Child("spec"))...)
	case *appsv1.StatefulSet:
		return append(checkSelector(o.Spec.Selector, o.Spec.Template.Labels, template), checkContainers(o.Spec.Template.Spec, template.Child("spec"))...)
	case *appsv1.DaemonSet:
		return append(checkSelector(o.Spec.Selector, o.Spec.Template.Labels, template), checkContainers(o.Spec.Template.Spec, template.Child("spec"))...)
	case *appsv1.ReplicaSet:
		return append(checkSelector(o.Spec.Selector, o.Spec.Template.Labels, template), checkContainers(o.Spec.Template.Spec, template.Child("spec"))...)
	}
	return nil
}

func checkJob(job batchv1.JobSpec, at *field.Path) field.ErrorList {
	pod := at.Child("template", "spec")
	problems := checkContainers(job.Template.Spec, pod)
	if policy := job.Template.Spec.RestartPolicy; policy == "" || policy == corev1.RestartPolicyAlways {
		problems = append(problems, field.Required(pod.Child("restartPolicy"), `a Job takes "OnFailure" or "Never"`))
	}
	return problems
}

// checkSelector refuses a controller that would not find its own pods.
func checkSelector(selector *metav1.LabelSelector, pods map[string]string, template *field.Path) field.ErrorList {
	if selector == nil {
		return field.ErrorList{field.Required(field.NewPath("spec", "selector"), "")}
	}
	chosen, err := metav1.LabelSelectorAsSelector(selector)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(field.NewPath("spec", "selector"), metav1.FormatLabelSelector(selector), err.Error())}
	case chosen.Empty() || !chosen.Matches(labels.Set(pods)):
		return field.ErrorList{field.Invalid(template.Child("metadata", "labels"), labels.FormatLabels(pods), "spec.selector does not choose these pods")}
	}
	return nil
}

// checkContainers refuses names that no container can have, and duplicate names.
func checkContainers(pod corev1.PodSpec, at *field.Path) (problems field.ErrorList) {
	if len(pod.Containers) == 0 {
		problems = append(problems, field.Required(at.Child("containers"), ""))
	}
	names := map[string]bool{}
	check := func(name string, at *field.Path) {
		for _, text := range validation.IsDNS1123Label(name) {
			problems = append(problems, field.Invalid(at, name, text))
		}
		if names[name] {
			problems = append(problems, field.Duplicate(at, name))
		}
		names[name] = true
	}
	for i, c := range pod.InitContainers {
		check(c.Name, at.Child("initContainers").Index(i).Child("name"))
	}
	for i, c := range pod.Containers {
		check(c.Name, at.Child("containers").Index(i).Child("name"))
	}
	return problems
}
