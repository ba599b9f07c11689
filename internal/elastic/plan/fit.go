package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Has reports whether a node has become ready with the devices of the request. The kubelet reports
// devices a moment after it is ready.
func (r Request) Has(node *corev1.Node) bool {
	for name, count := range r.Size.Devices {
		if _, known := node.Status.Allocatable[name]; count > 0 && !known {
			return false
		}
	}
	return isReady(node)
}

// isReady reports whether the kubelet of a node is ready.
func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// settled returns a ready node without the taint that a new node has. The controller of node
// lifecycles removes the taint a moment after the node is ready.
func settled(node *corev1.Node) *corev1.Node {
	isNew := func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeNotReady }
	if !slices.ContainsFunc(node.Spec.Taints, isNew) {
		return node
	}
	node = node.DeepCopy()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isNew)
	return node
}

// Admits reports whether the labels and taints of a node let a pod run there.
func Admits(node *corev1.Node, pod *corev1.Pod) bool {
	if node.Spec.Unschedulable || !toleratesTaints(node, pod) {
		return false
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && matches
}

// toleratesTaints reports whether a pod tolerates the taints of a node.
func toleratesTaints(node *corev1.Node, pod *corev1.Pod) bool {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), taint, false) }) {
			return false
		}
	}
	return true
}

// apart reports whether two pods may not run on one node: they use the same port of the node, or
// one of them has an anti-affinity for the other.
func apart(a, b *corev1.Pod) bool {
	for _, one := range hostPorts(a) {
		for _, other := range hostPorts(b) {
			if one.HostPort == other.HostPort && one.Protocol == other.Protocol &&
				(one.HostIP == other.HostIP || anyAddress(one.HostIP) || anyAddress(other.HostIP)) {
				return true
			}
		}
	}
	return avoids(a, b) || avoids(b, a)
}

func anyAddress(address string) bool { return address == "" || address == "0.0.0.0" || address == "::" }

// hostPorts returns the ports of the node that a pod uses.
func hostPorts(pod *corev1.Pod) (ports []corev1.ContainerPort) {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.HostPort > 0 {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// avoids reports whether a pod must not share a node with another one. Terms with a selector of
// namespaces are ignored, because the namespaces' labels are unknown here: then the pod may get a
// node that it does not need.
func avoids(pod, other *corev1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname || term.NamespaceSelector != nil {
			continue
		}
		namespaces := term.Namespaces
		if len(namespaces) == 0 {
			namespaces = []string{pod.Namespace}
		}
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err == nil && slices.Contains(namespaces, other.Namespace) && selector.Matches(labels.Set(other.Labels)) {
			return true
		}
	}
	return false
}

// daemons returns the most room that pods of DaemonSets take on a node.
func daemons(nodes []Node) (most Size) {
	for _, node := range nodes {
		var sum Size
		for _, pod := range node.Pods {
			if IsDaemon(pod) {
				sum = sum.plus(SizeOf(pod))
			}
		}
		most = most.max(sum)
	}
	return most
}

// IsDaemon reports whether each node has a pod like this one: a pod of a DaemonSet, or the mirror
// of a static pod.
func IsDaemon(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}
