package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"berth.dev/berth/internal/base/cluster"
)

// Reasons of the events about requests of a pod that the node cannot fulfil.
const (
	reasonUserNotHonoured     = "RunAsUserNotHonoured"
	reasonCPULimitNotEnforced = "CPULimitNotEnforced"
)

// notices reports by events on a pod which of its requests this node cannot fulfil: once,
// and again when an in-place resize changes the requests. The kubelet calls it at every
// sync of a pod, which saves an informer of pods.
type notices struct {
	oneUID, cgroups bool
	recorder        record.EventRecorder

	mu sync.Mutex
	// reported holds the last notices about each pod.
	reported map[types.UID][]notice
}

func newNotices(plan cluster.Plan, recorder record.EventRecorder) *notices {
	return &notices{oneUID: plan.OneUID, cgroups: plan.CgroupsDelegated, recorder: recorder, reported: map[types.UID][]notice{}}
}

// maxReported bounds the memory of reported pods. Beyond it a running pod may be
// reported again, and the recorder merges the two events.
const maxReported = 10_000

// ShouldEvict evicts nothing; see notices.
func (n *notices) ShouldEvict(pod *v1.Pod) lifecycle.ShouldEvictResponse {
	now := n.about(pod)
	n.mu.Lock()
	before, known := n.reported[pod.UID]
	if !known && len(n.reported) >= maxReported {
		clear(n.reported)
	}
	n.reported[pod.UID] = now
	n.mu.Unlock()
	for _, e := range now {
		if !slices.Contains(before, e) {
			n.recorder.Event(pod, e.kind, e.reason, e.message)
		}
	}
	return lifecycle.ShouldEvictResponse{}
}

type notice struct{ kind, reason, message string }

func (n *notices) about(pod *v1.Pod) []notice {
	var all []notice
	if n.oneUID {
		if fields := users(pod); len(fields) > 0 {
			all = append(all, notice{v1.EventTypeWarning, reasonUserNotHonoured, fmt.Sprintf(
				"%s not honoured: this node has one user id only, and every process of the pod runs as it; "+
					"ask for subordinate ids (/etc/subuid, newuidmap) to have more", strings.Join(fields, ", "))})
		}
	}
	if !n.cgroups {
		if limits := cpuLimited(pod); len(limits) > 0 {
			all = append(all, notice{v1.EventTypeNormal, reasonCPULimitNotEnforced, fmt.Sprintf(
				"CPU limit of %s is used for scheduling but not enforced: this node has no delegated cgroup",
				strings.Join(limits, ", "))})
		}
	}
	return all
}

// containers lists all containers of a pod.
func containers(pod *v1.Pod) []v1.Container {
	all := make([]v1.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	return append(append(all, pod.Spec.InitContainers...), pod.Spec.Containers...)
}

// users lists the fields that ask for a user or group other than root.
func users(pod *v1.Pod) []string {
	var fields []string
	add := func(where, field string, id *int64) {
		if id != nil && *id != 0 {
			fields = append(fields, fmt.Sprintf("%s%s %d", where, field, *id))
		}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		add("", "runAsUser", sc.RunAsUser)
		add("", "runAsGroup", sc.RunAsGroup)
		add("", "fsGroup", sc.FSGroup)
	}
	for _, c := range containers(pod) {
		if sc := c.SecurityContext; sc != nil {
			add(c.Name+": ", "runAsUser", sc.RunAsUser)
			add(c.Name+": ", "runAsGroup", sc.RunAsGroup)
		}
	}
	return fields
}

// cpuLimited lists the pod's containers with CPU limits, and the limits.
func cpuLimited(pod *v1.Pod) []string {
	var limits []string
	add := func(name string, limit *resource.Quantity) {
		if !limit.IsZero() {
			limits = append(limits, fmt.Sprintf("%s (%s)", name, limit))
		}
	}
	if r := pod.Spec.Resources; r != nil {
		add("the pod", r.Limits.Cpu())
	}
	for _, c := range containers(pod) {
		add(c.Name, c.Resources.Limits.Cpu())
	}
	return limits
}
