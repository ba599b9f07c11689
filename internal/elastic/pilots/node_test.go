package pilots

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/slurm"
)

func testNode() Node {
	return Node{
		Berth: "/opt/it's/berth", JoinOptions: []string{"--grace=1m0s"}, Dir: "/home/a", State: "/home/a/state",
		Roles: 320 << 20, FilesShare: 4, Pods: 250,
	}
}

func TestJobOfPilot(t *testing.T) {
	node := testNode()
	r := record{UID: "pilot-7-x", Request: plan.Request{
		Options: []string{"--partition=long"}, GPUType: "a100", Nodes: 2,
		Size: node.round(plan.Size{MilliCPU: 1500, Memory: 1<<30 + 1, Devices: map[corev1.ResourceName]int64{"nvidia.com/gpu": 2}}),
	}}
	job := node.job("7", r)
	want := "--job-name=berth-join-7 --output=/home/a/state/pilot-7-x/output --no-requeue --nodes=2 --ntasks-per-node=1 " +
		"--cpus-per-task=2 --mem=1345M --gpus-per-node=a100:2 --partition=long"
	if got := strings.Join(job.Options, " "); got != want {
		t.Errorf("options:\n%s\nwant:\n%s", got, want)
	}
	const request = `# request: {"options":["--partition=long"],"gpuType":"a100","size":{"milliCPU":2000,"memory":1074790400,"pods":250,"devices":{"nvidia.com/gpu":2}},"nodes":2}`
	if got, want := string(job.Script), "#!/bin/sh\n"+request+"\nexec '/opt/it'\\''s/berth' 'join' '7' '--grace=1m0s'\n"; got != want {
		t.Errorf("script %q, want %q", got, want)
	}
}

func TestCommandOfPilot(t *testing.T) {
	for _, c := range []struct {
		only, want string
	}{
		{"", "join 7 --grace=1m0s"},
		{"pod u", "join 7 --grace=1m0s --for=" + plan.ForValue("pod u")},
	} {
		command := testNode().command("7", record{Request: plan.Request{Only: c.only}})
		if got := strings.Join(command[1:], " "); got != c.want {
			t.Errorf("%q: got %s, want %s", c.only, got, c.want)
		}
	}
}

// Pods have the room that they request, whatever is kept for berth and for files.
func TestMemoryOfPilot(t *testing.T) {
	for _, inMemory := range []bool{false, true} {
		node := testNode()
		node.FilesInMemory = inMemory
		for _, pods := range []int64{0, 1, 512 << 20, 3<<30 + 12345} {
			size := node.round(plan.Size{Memory: pods})
			if got := node.podMemory(node.jobMemory(size.Memory)); got < pods || got < leastMemory || got > max(pods, leastMemory)+2<<20 {
				t.Errorf("pods that request %d bytes have %d, files in memory: %t", pods, got, inMemory)
			}
		}
	}
}

func TestLargestNode(t *testing.T) {
	partitions := []slurm.Partition{
		{Name: "short", Up: true, NodeCPUs: 8, NodeMemoryMB: 16384},
		{Name: "long", Up: true, NodeCPUs: 64, NodeMemoryMB: 8192},
		{Name: "down", NodeCPUs: 1, NodeMemoryMB: 1},
		{Name: "empty", Up: true},
	}
	for _, test := range []struct {
		options  []string
		env      string
		cpus, mb int64
	}{
		{nil, "", 8, 8192 - 320},
		{[]string{"--partition=short"}, "", 8, 16384 - 320},
		{[]string{"--partition=short,long"}, "", 8, 8192 - 320},
		{nil, "long", 64, 8192 - 320},
		{[]string{"--partition=short"}, "long", 8, 16384 - 320},
		{[]string{"--partition=other"}, "", 0, 0},
	} {
		node := testNode()
		node.Partition = test.env
		if got := node.largest(partitions, test.options); got.MilliCPU != 1000*test.cpus || got.Memory>>20 != test.mb {
			t.Errorf("the largest node with %v and SBATCH_PARTITION=%q has %d mCPU and %d MiB, want %d and %d", test.options, test.env, got.MilliCPU, got.Memory>>20, 1000*test.cpus, test.mb)
		}
	}
}

func TestLabelsOfNewNode(t *testing.T) {
	node := testNode()
	node.Partition = "short"
	for _, test := range []struct {
		options []string
		want    map[string]string
	}{
		{nil, map[string]string{partitionLabel: "short", hostLabel: ""}},
		{[]string{"--nodelist=n7", "--partition=long"}, map[string]string{partitionLabel: "long", hostLabel: "n7"}},
		{[]string{"--partition=long,short"}, map[string]string{partitionLabel: ""}},
	} {
		labels := node.template(test.options).Labels
		for name, value := range test.want {
			if labels[name] != value {
				t.Errorf("%v: label %s=%q, want %q", test.options, name, labels[name], value)
			}
		}
	}
}

func TestRecord(t *testing.T) {
	for _, r := range []record{
		{UID: "pilot-7-a", Request: plan.Request{Nodes: 1, Size: plan.Size{MilliCPU: 1000, Memory: 1 << 30, Pods: 250}}},
		{UID: "pilot-7-b", Request: plan.Request{Nodes: 4, Options: []string{"--qos=x"}, GPUType: "a100", Only: "gang a/b",
			Size: plan.Size{MilliCPU: 1000, Memory: 1 << 30, Devices: map[corev1.ResourceName]int64{"amd.com/gpu": 1}}},
			status: status{Job: "12", Released: true, Joined: true, Leaving: true, State: "PENDING", Reason: "Resources", Start: "2026-11-29T10:00", Hosts: "n[1-4]"}},
	} {
		object, err := r.configMap("7")
		if err != nil {
			t.Fatal(err)
		}
		got, err := readRecord(object)
		if err != nil || got.UID != r.UID || got.status != r.status || got.Group() != r.Group() || got.Nodes != r.Nodes ||
			!got.Size.Within(r.Size) || !r.Size.Within(got.Size) {
			t.Errorf("record %+v became %+v, %v", r, got, err)
		}
	}
}

func TestOnlyUnschedulablePodsWait(t *testing.T) {
	unschedulable := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}
	gated := unschedulable
	gated.Reason = corev1.PodReasonSchedulingGated
	pod := func(condition corev1.PodCondition, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{condition}}}
		if change != nil {
			change(p)
		}
		return p
	}
	waiting := []bool{
		waits(pod(unschedulable, nil)),
		waits(pod(gated, nil)),
		waits(pod(unschedulable, func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" })),
		waits(pod(unschedulable, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""} })),
	}
	if want := []bool{true, false, false, false}; !slices.Equal(waiting, want) {
		t.Errorf("pods wait: %v, want %v", waiting, want)
	}
}

// Each node has pods of DaemonSets, and may have mirrors of static pods. A pod that has ended may
// stay for days.
func TestPodsThatKeepTheirNode(t *testing.T) {
	pod := func(change func(*corev1.Pod)) bool {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		change(p)
		return keepsNode(p)
	}
	yes := true
	kept := []bool{
		pod(func(*corev1.Pod) {}),
		pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		pod(func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""} }),
		pod(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: &yes}}
		}),
	}
	if want := []bool{true, true, false, false, false, false}; !slices.Equal(kept, want) {
		t.Errorf("pods keep their node: %v, want %v", kept, want)
	}
}
