package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
)

// Pod is a pod that the scheduler cannot place.
type Pod struct {
	*corev1.Pod
	// Size is the room that the pod needs on a node.
	Size Size
	// Options holds options of sbatch for the pilot. GPUType is Slurm's name of the type of the
	// pod's GPUs, or empty.
	Options []string
	GPUType string
	// Alone is true for a pod that shares its pilot with no other pod.
	Alone bool
	// Gang identifies pods, in all namespaces, that need their nodes together, in one pilot of
	// GangSize nodes.
	Gang     string
	GangSize int
	// Stuck is the reason why no pilot helps the pod, or empty. Held is the reason why no new pilot
	// is submitted for it now, or empty.
	Stuck, Held string
}

// Only returns the key of the pods that may share a pilot with this one, or "" if others may.
func (p Pod) Only() string {
	switch {
	case p.Gang != "":
		return "gang " + p.Gang
	case p.Alone:
		return "pod " + string(p.UID)
	}
	return ""
}

// ForValue returns the value of cluster.ForLabel for the nodes of the pods with a key, or "" for
// the empty key.
func ForValue(only string) string {
	if only == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(only))
	return hex.EncodeToString(sum[:10])
}

// Request describes a pilot.
type Request struct {
	// Options and GPUType are as in Pod.
	Options []string `json:"options,omitempty"`
	GPUType string   `json:"gpuType,omitempty"`
	// Size is the room for pods on each node, and Nodes the number of nodes.
	Size  Size `json:"size"`
	Nodes int  `json:"nodes"`
	// Only is the key of the pods that the pilot is for, or empty.
	Only string `json:"only,omitempty"`
}

// Group identifies the pilots that could run the same pods.
func (r Request) Group() string {
	return strings.Join(append(slices.Clone(r.Options), r.GPUType, r.Only), "\n")
}

// Pilot is a pilot that was submitted, or is about to be.
type Pilot struct {
	UID string
	Request
	// Started is true once Slurm has started the job. Seen is the number of its nodes that have been
	// ready. Nodes that have left do not return.
	Started bool
	Seen    int
	// Leaving is true for a pilot whose nodes take no more pods.
	Leaving bool
}

// Node is a node of the cluster that takes pods, or may soon.
type Node struct {
	*corev1.Node
	// Pods holds the pods on the node that have not ended.
	Pods []*corev1.Pod
	// Pilot is the UID of the node's pilot, or empty.
	Pilot string
}

// Input holds the facts that a plan depends on.
type Input struct {
	Waiting []Pod
	Nodes   []Node
	// Pilots holds all pilots that have not ended.
	Pilots []Pilot
	// Seats is the number of nodes that may be added.
	Seats int
	// Largest returns the most that one node offers for options of sbatch. Zero values mean that
	// it is unknown.
	Largest func(options []string) Size
	// Fewer returns the largest number of pods in a pilot of a group, or 0 for no limit. Refused
	// returns Slurm's reason to refuse a pilot, or "".
	Fewer   func(group string) int
	Refused func(Request) string
	// Template is a new node as the scheduler would see it, for options of sbatch.
	Template func(options []string) *corev1.Node
}

// Result is a plan.
type Result struct {
	// New holds the pilots to submit. NewFor holds the pods that each is for.
	New    []Request
	NewFor [][]types.UID
	// For maps pods to the UIDs of the pilots that they wait for.
	For map[types.UID]string
	// Problems maps pods to the reasons why no pilot is submitted for them.
	Problems map[types.UID]string
}

// bin is room on a node that exists, that a pilot brings, or that a new pilot would bring.
type bin struct {
	node  *corev1.Node
	room  Size
	used  Size
	pods  []*corev1.Pod
	pilot string // UID, if the bin is of a pilot
	only  string
	group string
	// fresh is the index of a new pilot, or -1.
	fresh int
	// ready is true for a node where the scheduler places pods now.
	ready bool
}

// Make returns the plan for an input. The pods have the order of the scheduler's queue: priority,
// then age. Each gets the first room that fits: on a node, in a pilot that started, in a pilot
// that waits, or in a new one. So pods that fit soon bring no pilot. Held pods come last, because
// the scheduler may not use their room.
func Make(in Input) Result {
	p := planner{Input: in, daemons: daemons(in.Nodes), result: Result{For: map[types.UID]string{}, Problems: map[types.UID]string{}}}
	p.open()
	waiting := slices.Clone(in.Waiting)
	slices.SortStableFunc(waiting, func(a, b Pod) int {
		return cmp.Or(
			cmp.Compare(min(len(a.Held), 1), min(len(b.Held), 1)),
			cmp.Compare(priority(b.Pod), priority(a.Pod)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	gangs := map[string][]Pod{}
	for _, pod := range waiting {
		if pod.Gang != "" {
			gangs[pod.Only()] = append(gangs[pod.Only()], pod)
		}
	}
	for _, pod := range waiting {
		switch {
		case pod.Stuck != "":
			p.result.Problems[pod.UID] = pod.Stuck
		case p.place(pod):
		case pod.Gang != "":
			if gang := gangs[pod.Only()]; gang != nil {
				p.bringGang(gang)
				delete(gangs, pod.Only()) // the others are placed, or have the same problem
			}
		case pod.Held != "":
			p.result.Problems[pod.UID] = pod.Held
		default:
			p.bring([]Pod{pod}, 1)
		}
	}
	for _, one := range p.bins {
		if one.fresh >= 0 && one.used.Pods > 0 {
			request := &p.result.New[one.fresh]
			request.Size = request.Size.max(one.used.plus(p.daemons))
		}
	}
	return p.result
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// planner makes one plan.
type planner struct {
	Input
	// daemons is the room that pods of DaemonSets take on a new node.
	daemons Size
	bins    []*bin
	result  Result
}

// open makes the bins of nodes and of submitted pilots.
func (p *planner) open() {
	pilots := map[string]Pilot{}
	for _, pilot := range p.Pilots {
		pilots[pilot.UID] = pilot
	}
	registered := map[string]int{}
	for _, node := range p.Nodes {
		pilot := pilots[node.Pilot]
		if pilot.Leaving || !pilot.Has(node.Node) {
			continue
		}
		registered[node.Pilot]++
		room := Room(node.Node)
		for _, pod := range node.Pods {
			room = room.minus(SizeOf(pod))
		}
		p.bins = append(p.bins, &bin{node: settled(node.Node), room: room, pods: node.Pods, pilot: node.Pilot, only: pilot.Only, fresh: -1, ready: true})
	}
	order := slices.Clone(p.Pilots)
	slices.SortStableFunc(order, func(a, b Pilot) int { return cmp.Compare(a.rank(), b.rank()) })
	for _, pilot := range order {
		if pilot.Leaving {
			continue
		}
		for range pilot.Nodes - max(pilot.Seen, registered[pilot.UID]) {
			p.bins = append(p.bins, &bin{
				node: p.template(pilot.Request), room: pilot.Size.minus(p.daemons), pilot: pilot.UID, only: pilot.Only, group: pilot.Group(), fresh: -1,
			})
		}
	}
}

// template returns a new node of a pilot.
func (p *planner) template(request Request) *corev1.Node {
	node := p.Template(request.Options)
	if value := ForValue(request.Only); value != "" {
		node.Labels = maps.Clone(node.Labels)
		node.Labels[cluster.ForLabel] = value
	}
	return node
}

// rank orders pilots. Pilots that started come first, because pods start there earlier.
func (p Pilot) rank() int {
	if p.Started {
		return 0
	}
	return 1
}

// place gives a pod room in a bin that exists, and reports whether there is some.
func (p *planner) place(pod Pod) bool {
	request := Request{Options: pod.Options, GPUType: pod.GPUType, Only: pod.Only()}
	spreads := p.spreads(pod.Pod)
	for _, one := range p.bins {
		size := pod.Size
		switch {
		case one.only != pod.Only():
			continue
		case one.ready:
			// The scheduler counts only what the pod requests.
			size = SizeOf(pod.Pod)
		case one.group != request.Group(), !p.grows(one, size):
			continue
		case one.only != "" && one.used.Pods > 0:
			continue // a node for each pod of a gang
		}
		if !one.used.plus(size).Within(one.room) || !Admits(one.node, pod.Pod) || !admitsSpread(spreads, one) ||
			slices.ContainsFunc(one.pods, func(other *corev1.Pod) bool { return apart(pod.Pod, other) }) {
			continue
		}
		p.put(pod, size, one)
		return true
	}
	return false
}

// grows reports whether a bin may take one more pod of a size. A pilot that was submitted keeps
// its size, and Slurm may have refused a new one that is as large.
func (p *planner) grows(one *bin, size Size) bool {
	if one.fresh < 0 {
		return true
	}
	most := p.Fewer(one.group)
	grown := p.result.New[one.fresh]
	grown.Size = grown.Size.max(one.used.plus(size).plus(p.daemons))
	return (most == 0 || one.used.Pods < int64(most)) && p.Refused(grown) == ""
}

// put gives a pod the room in a bin.
func (p *planner) put(pod Pod, size Size, one *bin) {
	one.used, one.pods = one.used.plus(size), append(slices.Clip(one.pods), pod.Pod)
	if one.fresh >= 0 {
		p.result.NewFor[one.fresh] = append(p.result.NewFor[one.fresh], pod.UID)
		return
	}
	// The scheduler places the pod on a ready node now, or has a reason that is unknown here. A
	// pilot must not stay for the latter.
	if one.pilot != "" && !one.ready {
		p.result.For[pod.UID] = one.pilot
	}
}

// bringGang brings a pilot for the pods of a gang that have no room, once all of them exist and a
// node helps each of them.
func (p *planner) bringGang(gang []Pod) {
	for _, stuck := range gang {
		if stuck.Stuck == "" {
			continue
		}
		p.fail(gang, fmt.Sprintf("no job is submitted for its gang %s, because no node helps pod %s/%s: %s", gang[0].Gang, stuck.Namespace, stuck.Name, stuck.Stuck))
		p.result.Problems[stuck.UID] = stuck.Stuck
		return
	}
	if size := gang[0].GangSize; len(gang) < size {
		p.fail(gang, fmt.Sprintf("%d of %d pods of its gang %s wait for a node: one job brings all nodes, once all pods exist", len(gang), size, gang[0].Gang))
		return
	}
	for _, pod := range gang {
		if pod.Held != "" {
			p.fail(gang, pod.Held)
			return
		}
	}
	p.bring(gang, max(gang[0].GangSize, len(gang)))
}

// bring adds a new pilot for pods, and places each on its own node.
func (p *planner) bring(pods []Pod, nodes int) {
	first := pods[0]
	request := Request{Options: first.Options, GPUType: first.GPUType, Nodes: nodes, Only: first.Only()}
	for _, pod := range pods {
		request.Size = request.Size.max(pod.Size.plus(p.daemons))
	}
	template := p.template(request)
	for _, pod := range pods {
		if !Admits(template, pod.Pod) {
			p.fail(pods, fmt.Sprintf("no node of another job has the labels that its node selector or affinity asks for; new nodes have %s", describe(template.Labels)))
			return
		}
	}
	if reason := p.Refused(request); reason != "" {
		p.fail(pods, reason)
		return
	}
	if nodes > p.Seats {
		need := "1 seat"
		if nodes > 1 {
			need = fmt.Sprintf("%d seats", nodes)
		}
		p.fail(pods, fmt.Sprintf("no job is submitted: it needs %s (free: %d); a larger number for --elastic of 'berth up' allows more", need, max(0, p.Seats)))
		return
	}
	p.Seats -= nodes
	largest := p.Largest(first.Options)
	limit := request.Size
	limit.Pods = max(limit.Pods, largest.Pods)
	if first.Only() == "" {
		limit = limit.max(largest)
	}
	index := len(p.result.New)
	p.result.New, p.result.NewFor = append(p.result.New, request), append(p.result.NewFor, nil)
	for i := range nodes {
		one := &bin{node: template, room: limit.minus(p.daemons), only: request.Only, group: request.Group(), fresh: index}
		p.bins = append(p.bins, one)
		if i < len(pods) {
			p.put(pods[i], pods[i].Size, one)
		}
	}
}

func (p *planner) fail(pods []Pod, problem string) {
	for _, pod := range pods {
		p.result.Problems[pod.UID] = problem
	}
}

// describe lists labels.
func describe(labels map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, name+"="+labels[name])
	}
	return strings.Join(all, ", ")
}
