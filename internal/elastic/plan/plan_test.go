package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod returns a pod that waits. Options change it.
func pod(name, cpu, memory string, options ...func(*Pod)) Pod {
	p := Pod{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}}}}},
	}}
	for _, option := range options {
		option(&p)
	}
	p.Size = SizeOf(p.Pod)
	return p
}

func created(after int) func(*Pod) {
	return func(p *Pod) { p.CreationTimestamp = metav1.Unix(int64(after), 0) }
}

func labelled(key, value string) func(*Pod) {
	return func(p *Pod) { p.Labels = map[string]string{key: value} }
}

func selects(key, value string) func(*Pod) {
	return func(p *Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func gpus(count string) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse(count)
	}
}

func wants(options ...string) func(*Pod) { return func(p *Pod) { p.Options = options } }

func gangOf(size int) func(*Pod) {
	return func(p *Pod) { p.Gang, p.GangSize = "g", size }
}

func daemon(p *Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}
}

func alone(p *Pod) { p.Alone = true }
func held(p *Pod)  { p.Held = "later" }

func prior(priority int32) func(*Pod) { return func(p *Pod) { p.Spec.Priority = &priority } }

// apartFrom returns an anti-affinity for pods with a label.
func apartFrom(key, value string) func(*Pod) {
	return func(p *Pod) {
		p.Labels = map[string]string{key: value}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
		}}}}
	}
}

// spreadOver returns a topology spread constraint over hosts for pods with a label.
func spreadOver(skew int32, value string, options ...func(*corev1.TopologySpreadConstraint)) func(*Pod) {
	return func(p *Pod) {
		constraint := corev1.TopologySpreadConstraint{
			MaxSkew: skew, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}},
		}
		for _, option := range options {
			option(&constraint)
		}
		p.Labels = map[string]string{"app": value}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{constraint}
	}
}

func onlyPreferred(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway }

func overThree(c *corev1.TopologySpreadConstraint) { c.MinDomains = new(int32(3)) }

// node returns a node that is ready, with pods on it.
func node(name, cpu, memory, pilot string, pods ...Pod) Node {
	n := Node{Pilot: pilot, Node: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}}
	for _, p := range pods {
		n.Pods = append(n.Pods, p.Pod)
	}
	return n
}

func unready(n Node) Node {
	n.Status.Conditions = nil
	return n
}

func tainted(n Node, key string) Node {
	n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

func pilot(uid string, cpus, gib int64, options ...func(*Pilot)) Pilot {
	p := Pilot{UID: uid, Request: Request{Nodes: 1, Size: Size{MilliCPU: cpus * 1000, Memory: gib << 30, Pods: 110}}}
	for _, option := range options {
		option(&p)
	}
	return p
}

func started(p *Pilot) { p.Started = true }
func leaving(p *Pilot) { p.Leaving = true }

// write writes a plan as text.
func write(r Result) string {
	var lines []string
	for i, n := range r.New {
		line := fmt.Sprintf("new %d*(%dm %dMi %dp", n.Nodes, n.Size.MilliCPU, n.Size.Memory>>20, n.Size.Pods)
		for name, count := range n.Size.Devices {
			line += fmt.Sprintf(" %s=%d", name, count)
		}
		line += ")"
		for _, option := range n.Options {
			line += " " + option
		}
		var pods []string
		for _, uid := range r.NewFor[i] {
			pods = append(pods, string(uid))
		}
		lines = append(lines, line+" for "+strings.Join(pods, ","))
	}
	var rest []string
	for uid, pilot := range r.For {
		rest = append(rest, fmt.Sprintf("%s waits for %s", uid, pilot))
	}
	for uid, problem := range r.Problems {
		rest = append(rest, fmt.Sprintf("%s: %s", uid, problem))
	}
	slices.Sort(rest)
	return strings.Join(append(lines, rest...), "\n")
}

// input returns an input with seats for 10 nodes of at most 8 CPUs and 16 GiB.
func input(in Input) Input {
	if in.Seats == 0 {
		in.Seats = 10
	}
	if in.Largest == nil {
		in.Largest = func([]string) Size { return Size{MilliCPU: 8000, Memory: 16 << 30, Pods: 110} }
	}
	if in.Fewer == nil {
		in.Fewer = func(string) int { return 0 }
	}
	if in.Refused == nil {
		in.Refused = func(Request) string { return "" }
	}
	in.Template = func(options []string) *corev1.Node {
		labels := map[string]string{corev1.LabelOSStable: "linux"}
		for _, option := range options {
			if partition, ok := strings.CutPrefix(option, "--partition="); ok {
				labels["slurm.berth.dev/partition"] = partition
			}
		}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	}
	return in
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		name string
		in   Input
		want string
	}{
		{"no pod waits", Input{Pilots: []Pilot{pilot("a", 4, 4)}}, ""},
		{"pods share a pilot", Input{Waiting: []Pod{pod("a", "1", "1Gi"), pod("b", "500m", "2Gi")}},
			"new 1*(1500m 3072Mi 2p) for a,b"},
		{"a pilot is as large as the largest node", Input{Waiting: []Pod{pod("a", "5", "1Gi"), pod("b", "5", "1Gi"), pod("c", "3", "1Gi")}},
			"new 1*(8000m 2048Mi 2p) for a,c\nnew 1*(5000m 1024Mi 1p) for b"},
		{"a pod that is larger than all nodes gets a pilot, which Slurm judges", Input{Waiting: []Pod{pod("a", "20", "1Gi")}},
			"new 1*(20000m 1024Mi 1p) for a"},
		{"daemons need room too", Input{Waiting: []Pod{pod("a", "1", "1Gi")}, Nodes: []Node{node("n1", "1", "1Gi", "", pod("x", "100m", "64Mi", daemon), pod("y", "900m", "64Mi"))}},
			"new 1*(1100m 1088Mi 2p) for a"},
		{"pods that fit a pilot that waits bring none", Input{Waiting: []Pod{pod("a", "1", "1Gi"), pod("b", "3", "1Gi"), pod("c", "1", "1Gi")}, Pilots: []Pilot{pilot("p", 4, 4)}},
			"new 1*(1000m 1024Mi 1p) for c\na waits for p\nb waits for p"},
		{"a pilot that has started comes first", Input{Waiting: []Pod{pod("a", "1", "1Gi")}, Pilots: []Pilot{pilot("p", 4, 4), pilot("q", 4, 4, started)}},
			"a waits for q"},
		{"a node that is not ready has the room of its pilot", Input{
			Waiting: []Pod{pod("a", "4", "1Gi")}, Pilots: []Pilot{pilot("p", 4, 4, started)}, Nodes: []Node{unready(node("n2-7", "0", "0", "p"))},
		}, "a waits for p"},
		{"a node that is ready has its own room", Input{
			Waiting: []Pod{pod("a", "1", "1Gi"), pod("b", "1", "1Gi")}, Pilots: []Pilot{pilot("p", 4, 4, started)},
			Nodes: []Node{node("n2-7", "4", "4Gi", "p", pod("x", "3", "1Gi"))},
		}, "new 1*(1000m 1024Mi 1p) for b"},
		{"a node that has left does not return", Input{
			Waiting: []Pod{pod("a", "2", "1Gi"), pod("b", "2", "1Gi")},
			Pilots:  []Pilot{pilot("p", 2, 4, started, func(p *Pilot) { p.Nodes, p.Seen = 3, 2 })},
			Nodes:   []Node{node("n2-7", "2", "4Gi", "p", pod("x", "2", "1Gi"))},
		}, "new 1*(2000m 1024Mi 1p) for b\na waits for p"},
		{"a pilot that leaves has no room", Input{Waiting: []Pod{pod("a", "1", "1Gi")}, Pilots: []Pilot{pilot("p", 4, 4, started, leaving)},
			Nodes: []Node{node("n2-7", "4", "4Gi", "p")}}, "new 1*(1000m 1024Mi 1p) for a"},
		{"the scheduler places a pod that fits a node", Input{Waiting: []Pod{pod("a", "1", "1Gi")}, Nodes: []Node{node("n1", "2", "2Gi", "")}}, ""},
		{"a taint keeps a pod off a node", Input{Waiting: []Pod{pod("a", "1", "1Gi")}, Nodes: []Node{tainted(node("n1", "2", "2Gi", ""), "x")}},
			"new 1*(1000m 1024Mi 1p) for a"},
		{"a node loses the taint of new nodes soon after it is ready", Input{Waiting: []Pod{pod("a", "1", "1Gi")}, Pilots: []Pilot{pilot("p", 2, 2, started)},
			Nodes: []Node{tainted(node("n1", "2", "2Gi", "p"), corev1.TaintNodeNotReady)}}, ""},
		{"a node has its devices soon after it is ready", Input{Waiting: []Pod{pod("a", "1", "1Gi", gpus("1"))},
			Pilots: []Pilot{pilot("p", 2, 2, started, func(p *Pilot) { p.Size.Devices = map[corev1.ResourceName]int64{"nvidia.com/gpu": 1} })},
			Nodes:  []Node{node("n1", "2", "2Gi", "p")}}, "a waits for p"},
		{"pods with other options have other pilots", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", wants("--partition=long")), pod("b", "1", "1Gi"), pod("c", "1", "1Gi", wants("--partition=long"))},
			Pilots:  []Pilot{pilot("p", 1, 1)},
		}, "new 1*(2000m 2048Mi 2p) --partition=long for a,c\nb waits for p"},
		{"a node selector may match an option", Input{Waiting: []Pod{pod("a", "1", "1Gi", wants("--partition=long"), selects("slurm.berth.dev/partition", "long"))}},
			"new 1*(1000m 1024Mi 1p) --partition=long for a"},
		{"no pilot has the name of a node", Input{Waiting: []Pod{pod("a", "1", "1Gi", selects(corev1.LabelHostname, "n1"))}},
			"a: no node of another job has the labels that its node selector or affinity asks for; new nodes have kubernetes.io/os=linux"},
		{"pods that avoid each other get a node each", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", apartFrom("app", "a")), pod("b", "1", "1Gi", apartFrom("app", "a")), pod("c", "1", "1Gi")},
			Nodes:   []Node{node("n1", "2", "2Gi", "", pod("x", "1", "1Gi", labelled("app", "a")))},
		}, "new 1*(1000m 1024Mi 1p) for a\nnew 1*(1000m 1024Mi 1p) for b"},
		{"pods that are spread over nodes bring more nodes", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", spreadOver(1, "a")), pod("b", "1", "1Gi", spreadOver(1, "a")), pod("c", "1", "1Gi", spreadOver(1, "a"))},
			Nodes: []Node{
				node("n1", "8", "8Gi", "", pod("x", "1", "1Gi", labelled("app", "a")), pod("y", "1", "1Gi", labelled("app", "a"))),
				node("n2", "1", "8Gi", "", pod("z", "1", "1Gi", labelled("app", "a"))),
			},
		}, "new 1*(2000m 2048Mi 2p) for a,b\nnew 1*(1000m 1024Mi 1p) for c"},
		{"the scheduler does not know of nodes that come", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", spreadOver(1, "a"))}, Pilots: []Pilot{pilot("p", 4, 4)},
			Nodes: []Node{node("n1", "8", "8Gi", "", pod("x", "1", "1Gi", labelled("app", "a")))},
		}, ""},
		{"pods are spread over at least so many nodes", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", spreadOver(1, "a", overThree)), pod("b", "1", "1Gi", spreadOver(1, "a", overThree))},
			Nodes:   []Node{node("n1", "8", "8Gi", "", pod("x", "1", "1Gi", labelled("app", "a")))},
		}, "new 1*(1000m 1024Mi 1p) for a\nnew 1*(1000m 1024Mi 1p) for b"},
		{"a spread that is only preferred", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", spreadOver(1, "a", onlyPreferred))},
			Nodes:   []Node{node("n1", "8", "8Gi", "", pod("x", "1", "1Gi", labelled("app", "a"))), node("n2", "1", "1Gi", "", pod("y", "1", "1Gi"))},
		}, ""},
		{"GPUs", Input{Waiting: []Pod{pod("a", "1", "1Gi", gpus("2"))}, Nodes: []Node{node("n1", "8", "8Gi", "")}},
			"new 1*(1000m 1024Mi 1p nvidia.com/gpu=2) for a"},
		{"older pods and pods with priority get the last seat", Input{Seats: 1, Waiting: []Pod{
			pod("young", "8", "1Gi", created(9)), pod("old", "8", "1Gi", created(1)), pod("first", "8", "1Gi", created(9), prior(5)),
		}}, "new 1*(8000m 1024Mi 1p) for first\n" +
			"old: no job is submitted: it needs 1 seat (free: 0); a larger number for --elastic of 'berth up' allows more\n" +
			"young: no job is submitted: it needs 1 seat (free: 0); a larger number for --elastic of 'berth up' allows more"},
		{"a pod alone shares with none", Input{Waiting: []Pod{pod("a", "1", "1Gi", alone), pod("b", "1", "1Gi"), pod("c", "1", "1Gi", alone)}, Pilots: []Pilot{
			pilot("p", 4, 4, func(p *Pilot) { p.Only = "pod c" }),
		}}, "new 1*(1000m 1024Mi 1p) for a\nnew 1*(1000m 1024Mi 1p) for b\nc waits for p"},
		{"a gang has one pilot", Input{Waiting: []Pod{pod("a", "1", "1Gi", gangOf(2)), pod("b", "2", "1Gi", gangOf(2))}},
			"new 2*(2000m 1024Mi 1p) for a,b"},
		{"a gang waits for its pods", Input{Waiting: []Pod{pod("a", "1", "1Gi", gangOf(3)), pod("b", "2", "1Gi", gangOf(3))}},
			"a: 2 of 3 pods of its gang g wait for a node: one job brings all nodes, once all pods exist\n" +
				"b: 2 of 3 pods of its gang g wait for a node: one job brings all nodes, once all pods exist"},
		{"a gang has a node for each pod", Input{Waiting: []Pod{pod("a", "1", "1Gi", gangOf(2)), pod("b", "1", "1Gi", gangOf(2))}, Pilots: []Pilot{
			pilot("p", 4, 4, func(p *Pilot) { p.Nodes, p.Only = 2, "gang g" }),
		}}, "a waits for p\nb waits for p"},
		{"all nodes of a gang or none", Input{Seats: 1, Waiting: []Pod{pod("a", "1", "1Gi", gangOf(2)), pod("b", "2", "1Gi", gangOf(2))}},
			"a: no job is submitted: it needs 2 seats (free: 1); a larger number for --elastic of 'berth up' allows more\n" +
				"b: no job is submitted: it needs 2 seats (free: 1); a larger number for --elastic of 'berth up' allows more"},
		{"a gang with a pod that no node helps brings none", Input{Waiting: []Pod{
			pod("a", "1", "1Gi", gangOf(2)), pod("b", "1", "1Gi", gangOf(2), func(p *Pod) { p.Stuck = "its claim is on n1" }),
		}}, "a: no job is submitted for its gang g, because no node helps pod default/b: its claim is on n1\nb: its claim is on n1"},
		{"a refused pilot is not submitted again", Input{Waiting: []Pod{pod("a", "1", "1Gi"), pod("b", "7", "1Gi"), pod("c", "1", "1Gi")},
			Refused: func(r Request) string {
				if r.Size.MilliCPU > 6000 {
					return "too large"
				}
				return ""
			},
		}, "new 1*(2000m 2048Mi 2p) for a,c\nb: too large"},
		{"smaller pilots after a refusal", Input{Waiting: []Pod{pod("a", "1", "1Gi"), pod("b", "1", "1Gi"), pod("c", "1", "1Gi")}, Fewer: func(string) int { return 2 }},
			"new 1*(2000m 2048Mi 2p) for a,b\nnew 1*(1000m 1024Mi 1p) for c"},
		{"no pilot helps", Input{Waiting: []Pod{pod("a", "1", "1Gi", func(p *Pod) { p.Stuck = "its claim is on n1" })}}, "a: its claim is on n1"},
		{"a pod that is held brings no pilot, and takes no room from others", Input{
			Waiting: []Pod{pod("a", "1", "1Gi", held), pod("b", "1", "1Gi"), pod("c", "1", "1Gi", gangOf(2)), pod("d", "1", "1Gi", gangOf(2), held)},
			Pilots:  []Pilot{pilot("p", 1, 1)},
		}, "a: later\nb waits for p\nc: later\nd: later"},
		{"pods without requests", Input{Waiting: []Pod{pod("a", "0", "0"), pod("b", "0", "0")}}, "new 1*(0m 0Mi 2p) for a,b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := write(Make(input(test.in))); got != test.want {
				t.Errorf("plan:\n%s\nwant:\n%s", got, test.want)
			}
		})
	}
}

// A plan for a thousand pods is made often, so it must be quick. The test only shows that it ends.
func TestPlanOfManyPods(t *testing.T) {
	var waiting []Pod
	for i := range 1000 {
		waiting = append(waiting, pod(fmt.Sprintf("p%04d", i), "1", "1Gi"))
	}
	began := time.Now()
	result := Make(input(Input{Waiting: waiting, Seats: 200}))
	if len(result.New) != 125 || len(result.Problems) != 0 {
		t.Errorf("%d pilots and %d problems, want 125 and 0", len(result.New), len(result.Problems))
	}
	t.Log(time.Since(began))
}
