package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// spread is a topology spread constraint of a pod over hosts. The scheduler's plugin
// PodTopologySpread has the rule: the pods on a node, with this pod, exceed those on the node with
// the fewest by MaxSkew at most.
type spread struct {
	// own is 1 if the constraint counts the pod itself, and most is MaxSkew.
	own, most int
	// on counts the pods on each node. now is the least count of the nodes that are ready, which the
	// scheduler compares with now, and later that of all nodes.
	on         map[*bin]int
	now, later int
}

// spreads returns the constraints of a pod that its node must satisfy. Constraints over other
// topologies than hosts are ignored, because the labels of a new node are unknown. An empty new
// node satisfies each constraint over hosts.
func (p *planner) spreads(pod *corev1.Pod) (all []spread) {
	for _, constraint := range pod.Spec.TopologySpreadConstraints {
		if constraint.TopologyKey != corev1.LabelHostname || constraint.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(constraint.LabelSelector)
		if err != nil {
			continue
		}
		counts := func(other *corev1.Pod) bool {
			return other.Namespace == pod.Namespace && other.DeletionTimestamp == nil && selector.Matches(labels.Set(other.Labels)) &&
				!slices.ContainsFunc(constraint.MatchLabelKeys, func(key string) bool {
					value, set := pod.Labels[key]
					return set && other.Labels[key] != value
				})
		}
		one := spread{most: int(constraint.MaxSkew), on: map[*bin]int{}}
		if counts(pod) {
			one.own = 1
		}
		for _, bin := range p.bins {
			if !eligible(constraint, pod, bin.node) {
				continue
			}
			one.on[bin] = 0
			for _, other := range bin.pods {
				if counts(other) {
					one.on[bin]++
				}
			}
		}
		enough := 1
		if constraint.MinDomains != nil {
			enough = int(*constraint.MinDomains)
		}
		if len(one.on) >= enough {
			one.later = slices.Min(slices.Collect(maps.Values(one.on)))
		}
		var ready []int
		for bin, count := range one.on {
			if bin.ready {
				ready = append(ready, count)
			}
		}
		if len(ready) >= enough {
			one.now = slices.Min(ready)
		}
		all = append(all, one)
	}
	return all
}

// eligible reports whether a constraint counts the pods of a node.
func eligible(constraint corev1.TopologySpreadConstraint, pod *corev1.Pod, node *corev1.Node) bool {
	if policy := constraint.NodeAffinityPolicy; policy == nil || *policy == corev1.NodeInclusionPolicyHonor {
		if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !matches {
			return false
		}
	}
	policy := constraint.NodeTaintsPolicy
	return policy == nil || *policy == corev1.NodeInclusionPolicyIgnore || toleratesTaints(node, pod)
}

// admitsSpread reports whether constraints let their pod run on a node.
func admitsSpread(all []spread, on *bin) bool {
	return !slices.ContainsFunc(all, func(one spread) bool {
		least := one.later
		if on.ready {
			least = one.now
		}
		return one.on[on]+one.own-least > one.most
	})
}
