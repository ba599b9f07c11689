package wishes

import (
	v1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/permit"
)

// selectable maps labels of nodes to the option of sbatch that chooses such a node.
var selectable = map[string]string{own + "partition": "partition", own + "node": "nodelist"}

// selected takes the wishes in the pod's node selector, and in its required node affinity if that
// has a single value. Pods with the same selector may share a job, unlike pods with annotations.
// An annotation that names another place is a problem: the scheduler would not bind the pod there.
func (r *reader) selected(pod *v1.Pod) {
	take := func(from, label, value string) {
		option := batch.Option{Name: selectable[label], Value: value}
		if option.Name == "" || value == "" {
			return
		}
		if err := permit.Check(option); err != nil {
			r.problem(from, true, "%v", err)
			return
		}
		if other, ok := r.values[option.Name]; ok && other != value {
			r.problem(from, true, "%s: %s differs from --%s=%s: delete one of them", label, value, option.Name, other)
			return
		}
		r.values[option.Name] = value
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		// Terms are alternatives, and one of several cannot be chosen here.
		if terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(terms) == 1 {
			for _, e := range terms[0].MatchExpressions {
				if e.Operator == v1.NodeSelectorOpIn && len(e.Values) == 1 {
					take("nodeAffinity", e.Key, e.Values[0])
				}
			}
		}
	}
	for label, value := range pod.Spec.NodeSelector {
		take("nodeSelector", label, value)
	}
}
