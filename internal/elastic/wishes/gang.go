package wishes

import (
	"cmp"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// gangName and gangSize are berth's annotations for gangs, without the prefix.
const (
	gangName = "gang"
	gangSize = "gang-size"
)

// Labels and annotations that others put on the pods of a gang.
const (
	// Of JobSet: api/jobset/v1alpha2/jobset_types.go, pkg/constants.
	jobSetName    = "jobset.sigs.k8s.io/jobset-name"
	jobSetRestart = "jobset.sigs.k8s.io/restart-attempt"
	jobSetPart    = "jobset.sigs.k8s.io/replicatedjob-name"
	// Of LeaderWorkerSet: api/leaderworkerset/v1/leaderworkerset_types.go.
	leaderWorkerGroup = "leaderworkerset.sigs.k8s.io/group-key"
	leaderWorkerSize  = "leaderworkerset.sigs.k8s.io/size"
	// Of scheduler-plugins: apis/scheduling/v1alpha1/types.go.
	podGroup = "scheduling.x-k8s.io/pod-group"
	// Of Kueue: pkg/controller/constants.
	kueueGroup = "kueue.x-k8s.io/pod-group-name"
	kueueSize  = "kueue.x-k8s.io/pod-group-total-count"
)

// greatestGang is more than the nodes that a cluster can have.
const greatestGang = 4096

// gang sets the gang of a pod. If the pod does not state the size, an object above it may.
func (r *reader) gang(pod *v1.Pod, owners []Owner, to *Request) {
	// kind tells gangs of the same name apart that come from different sources.
	name, kind, text, from := "", "", "", ""
	switch labels, notes := pod.Labels, pod.Annotations; {
	case notes[own+gangName] != "":
		name, text, from = notes[own+gangName], notes[own+gangSize], own+gangSize
		if text == "" {
			r.problem(own+gangName, true, "the annotation %s is missing: set it to the number of pods in the gang", own+gangSize)
			return
		}
	case labels[leaderWorkerGroup] != "":
		kind, name, text, from = "LeaderWorkerSet", labels[leaderWorkerGroup], notes[leaderWorkerSize], leaderWorkerSize
	case labels[kueueGroup] != "":
		kind, name, text, from = "Kueue", labels[kueueGroup], notes[kueueSize], kueueSize
	case pod.Spec.SchedulingGroup != nil && pod.Spec.SchedulingGroup.PodGroupName != nil:
		kind, name = "PodGroup.scheduling.k8s.io", *pod.Spec.SchedulingGroup.PodGroupName
	case labels[podGroup] != "":
		kind, name = "PodGroup.scheduling.x-k8s.io", labels[podGroup]
	case labels[jobSetName] != "":
		// A JobSet that restarts deletes its pods. The new pods need a new job.
		kind, name = "JobSet", labels[jobSetName]+"/"+cmp.Or(labels[jobSetRestart], "0")
	}
	size := 0
	if text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			r.problem(from, true, "%q is not a number of pods", text)
			return
		}
		size = n
	}
	ofOwner, _, _ := strings.Cut(kind, ".")
	for _, owner := range owners {
		if size == 0 && owner.Gang > 0 && kind != "" && owner.Kind == ofOwner {
			size = owner.Gang
			if owner.Part != "" {
				name += "/" + owner.Part
			}
		}
	}
	nodes := int(r.amount.nodes)
	switch {
	case size > greatestGang:
		r.problem(cmp.Or(from, "gang "+name), true, "a gang has at most %d pods", greatestGang)
	case size > 1:
		to.Gang, to.GangSize = strings.TrimSpace(kind+" "+pod.Namespace+"/"+name), size
	}
	if nodes > max(size, 1) {
		r.problem(r.amount.nodesFrom, false, "--nodes=%d: a pod has one node: start %d pods with the annotations %s and %s", nodes, nodes, own+gangName, own+gangSize)
	}
}
