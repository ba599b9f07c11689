package pilots

import (
	"context"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/elastic/wishes"
	"berth.dev/berth/internal/job/slurm"
)

// Labels of nodes; see docs/nodes.md.
const (
	jobLabel       = "slurm.berth.dev/job"
	partitionLabel = "slurm.berth.dev/partition"
	hostLabel      = "slurm.berth.dev/node"
)

// partitionsFor bounds the age of the sizes of partitions.
const partitionsFor = 10 * time.Minute

// input is the input of a plan.
type input struct {
	plan.Input
	// unjudged is true if the scheduler has not looked at a new pod yet, or its wishes were not read.
	unjudged bool
	// nodesOf holds the nodes of each pilot.
	nodesOf map[string][]plan.Node
	// failed holds the pods that have failed on a node.
	failed []*corev1.Pod
	// ignored holds the wishes of pods that have no meaning here.
	ignored map[types.UID]string
}

// input returns the cluster as the informers know it. The caller holds mu.
func (l *Loop) input(now time.Time) input {
	in := input{nodesOf: map[string][]plan.Node{}, ignored: map[types.UID]string{}}
	in.Seats = l.Seats
	byJob := map[string]string{}
	for _, p := range l.pilots {
		if p.Job != "" {
			byJob[p.Job] = p.UID
		}
		if p.final != nil {
			continue
		}
		in.Seats -= p.Nodes
		in.Pilots = append(in.Pilots, plan.Pilot{UID: p.UID, Request: p.Request, Started: p.started(), Seen: p.seen, Leaving: p.Leaving || p.idling})
	}
	slices.SortFunc(in.Pilots, func(a, b plan.Pilot) int { return strings.Compare(a.UID, b.UID) })
	on := map[string][]*corev1.Pod{}
	for _, pod := range l.view.pods() {
		switch {
		case pod.Spec.NodeName != "":
			switch pod.Status.Phase {
			case corev1.PodSucceeded:
			case corev1.PodFailed:
				in.failed = append(in.failed, pod)
			default:
				on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
			}
		case waits(pod) && l.owners.known(pod):
			wanted, ignored := l.wanted(pod)
			in.Waiting = append(in.Waiting, wanted)
			if len(ignored) > 0 {
				in.ignored[pod.UID] = strings.Join(ignored, "; ")
			}
		case (unjudged(pod) || waits(pod)) && now.Sub(pod.CreationTimestamp.Time) < judgeLimit:
			in.unjudged = true
		}
	}
	for _, node := range l.view.nodes() {
		if cluster.IsVirtual(node.Labels) {
			continue
		}
		job := node.Labels[jobLabel]
		one := plan.Node{Node: node, Pods: on[node.Name], Pilot: byJob[job]}
		in.Nodes = append(in.Nodes, one)
		switch {
		case one.Pilot != "":
			in.nodesOf[one.Pilot] = append(in.nodesOf[one.Pilot], one)
		case job != l.Job:
			in.Seats-- // 'berth join' by hand
		}
	}
	for uid, p := range l.pilots {
		p.closed = slices.ContainsFunc(in.nodesOf[uid], func(node plan.Node) bool { return isClosed(node.Node) })
	}
	l.forget(now)
	in.Largest = func(options []string) plan.Size { return l.nodeWith(options).largest(l.partitions, options) }
	in.Fewer = func(group string) int { return l.fewer[group].pods }
	in.Refused = func(r plan.Request) string { return l.refused(r, now) }
	in.Template = l.template
	return in
}

// waits reports whether the scheduler has found no node for a pod, and a new node may help. A pod
// with a nominated node waits for others there to end.
func waits(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.NominatedNodeName != "" || plan.IsDaemon(pod) || cluster.ShowsSlurmJob(pod.Labels) {
		return false
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// unjudged reports whether the scheduler has not looked at a pod yet.
func unjudged(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

// keepsNode reports whether a pod keeps its node: it has not ended, and not each node has it.
func keepsNode(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && !plan.IsDaemon(pod)
}

// wanted returns what a pod needs, for a pod whose owners were read, and its wishes that have no
// meaning here. The caller holds mu.
func (l *Loop) wanted(pod *corev1.Pod) (wanted plan.Pod, ignored []string) {
	request, problems := wishes.Of(pod, l.owners.of(pod)...)
	size := plan.SizeOf(pod)
	size.MilliCPU, size.Memory = request.MilliCPU, request.Memory
	wanted = plan.Pod{
		Pod: pod, Size: size, Options: request.Options, GPUType: request.GPUType,
		Alone: request.Alone, Gang: request.Gang, GangSize: request.GangSize, Stuck: l.stuck(pod),
	}
	if pod.Spec.NodeSelector[cluster.ForLabel] != plan.ForValue(wanted.Only()) {
		// The pod passed no gate, because it was annotated later or the policy was not in force yet.
		// It would not tolerate a node for itself.
		wanted.Alone, wanted.Gang, wanted.GangSize = false, "", 0
	}
	if len(request.Others) > 0 {
		wanted.Stuck = fmt.Sprintf("no node of another job is requested: the pod needs %s, and jobs request only GPUs", request.Others[0])
	}
	for _, problem := range problems {
		if problem.Blocks {
			wanted.Stuck = "no node of another job is requested: " + problem.String()
		} else {
			ignored = append(ignored, problem.String())
		}
	}
	return wanted, ignored
}

// heldFor returns why no new pilot is submitted for a pod now, or "". The caller holds mu.
func (l *Loop) heldFor(pod plan.Pod, now time.Time) string {
	uids := []types.UID{pod.UID}
	if owner := metav1.GetControllerOf(pod); owner != nil && pod.Alone {
		uids = append(uids, owner.UID)
	}
	for _, uid := range uids {
		if f := l.held[uid]; f != nil && now.Before(f.until) {
			return f.text()
		}
	}
	return ""
}

// stuck returns the reason why a claim of a pod keeps it off new nodes, or "".
func (l *Loop) stuck(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		name := ""
		switch {
		case volume.PersistentVolumeClaim != nil:
			name = volume.PersistentVolumeClaim.ClaimName
		case volume.Ephemeral != nil:
			name = pod.Name + "-" + volume.Name
		default:
			continue
		}
		claim := l.view.claim(pod.Namespace, name)
		switch {
		case claim == nil:
			return fmt.Sprintf("no node of another job is requested: claim %s does not exist", name)
		case claim.Spec.VolumeName == "":
			if class := claim.Spec.StorageClassName; class != nil && *class == cluster.LocalClass {
				return fmt.Sprintf("no node of another job is requested: claim %s is of the class %s, whose volumes are on the nodes of the cluster's own job; use the class %s, or an emptyDir", name, cluster.LocalClass, cluster.SharedClass)
			}
			continue
		}
		bound := l.view.volume(claim.Spec.VolumeName)
		if bound == nil || bound.Spec.NodeAffinity == nil || bound.Spec.NodeAffinity.Required == nil {
			continue
		}
		if fits, err := nodeaffinity.NewLazyErrorNodeSelector(bound.Spec.NodeAffinity.Required).Match(l.template(nil)); err != nil || !fits {
			return fmt.Sprintf("no node of another job is requested: the volume of claim %s is on another node", name)
		}
	}
	return ""
}

// template returns a new node as the scheduler would see it. Its name and its switch are not known.
func (n Node) template(options []string) *corev1.Node {
	labels := map[string]string{
		corev1.LabelOSStable: goruntime.GOOS, corev1.LabelArchStable: goruntime.GOARCH,
		"beta." + corev1.LabelOSStable: goruntime.GOOS, "beta." + corev1.LabelArchStable: goruntime.GOARCH,
	}
	if name := n.partition(options); name != "" && !strings.Contains(name, ",") {
		labels[partitionLabel] = name
	}
	for _, option := range options {
		if host, ok := strings.CutPrefix(option, "--nodelist="); ok {
			labels[hostLabel] = host
		}
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
}

// forget drops refusals that are over, and failures that were not repeated. The caller holds mu.
func (l *Loop) forget(now time.Time) {
	l.refusals = slices.DeleteFunc(l.refusals, func(r refusal) bool { return now.After(r.until) })
	maps.DeleteFunc(l.tested, func(_ string, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(l.inMemory, func(_ string, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(l.fewer, func(_ string, f limit) bool { return now.After(f.until) })
	maps.DeleteFunc(l.failures, func(_ string, f *failure) bool { return now.After(f.until.Add(longestHeld)) })
	maps.DeleteFunc(l.held, func(_ types.UID, f *failure) bool { return now.After(f.until.Add(longestHeld)) })
}

// refused returns why a pilot is not submitted now, or "". The caller holds mu.
func (l *Loop) refused(r plan.Request, now time.Time) string {
	r.Size = l.round(r.Size)
	key := failureKey(r)
	for _, refusal := range l.refusals {
		if failureKey(refusal.Request) == key && refusal.Nodes <= r.Nodes && refusal.Size.Within(r.Size) {
			return refusal.reason
		}
	}
	if f := l.failures[key]; f != nil && now.Before(f.until) {
		return f.text()
	}
	return ""
}

// askPartitions reads the sizes of partitions if they are old. Without them, each pod gets a pilot.
func (l *Loop) askPartitions(ctx context.Context) {
	l.mu.Lock()
	recent := time.Since(l.asked) < partitionsFor
	l.mu.Unlock()
	if recent || !slices.ContainsFunc(l.view.pods(), waits) {
		return
	}
	partitions, err := slurm.Partitions(ctx, l.Ask)
	if err != nil {
		l.Log.Debug("read the sizes of partitions: " + err.Error())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = time.Now()
	if err == nil {
		l.partitions = partitions
	} else {
		l.asked = l.asked.Add(refusedFor - partitionsFor)
	}
}
