package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"berth.dev/berth/internal/base/cluster"
)

// pressureTimeout limits the wait for a node under memory or disk pressure, after pods of
// the workload have ended there: the kubelet takes 30 s (berth's setting) to report that
// the pressure is over.
const pressureTimeout = time.Minute

// isTainted parses the scheduler's message, which does not name the taint.
func isTainted(message string) bool { return strings.Contains(message, "untolerated taint") }

// tainted reports whether a taint keeps a pod away. If so, the caller passes the
// nodes to handleNodes.
func (s *stuckPods) tainted() bool { return s.anyPod((*waiting).tainted) }

func (w *waiting) tainted() bool {
	t := w.current()
	return w.followed && t != nil && t.tainted
}

// handleNodes decides how long to wait for pods that taints keep away.
func (s *stuckPods) handleNodes(nodes []corev1.Node) {
	for _, w := range s.pods {
		if w.tainted() {
			s.handleTaints(w, nodes)
		}
	}
}

// unanswered returns the pods of the workload whose node has not answered.
func (s *stuckPods) unanswered(now time.Time) []*waiting {
	var all []*waiting
	for _, w := range s.pods {
		if w.followed && w.node != "" && w.current() == nil && now.Sub(w.seen) > missingTimeout {
			all = append(all, w)
		}
	}
	return all
}

// handleUnknownNodes finds the pods that were given to a node that does not exist,
// by their own spec.nodeName.
func (s *stuckPods) handleUnknownNodes(nodes []corev1.Node, now time.Time) {
	for _, w := range s.unanswered(now) {
		if !slices.ContainsFunc(nodes, func(node corev1.Node) bool { return node.Name == w.node }) {
			w.status = s.newTrouble(kind{classNodes, certain, otherTimeout}, stageVolumes, w.name, "NodeNotFound", "there is no node "+w.node)
			w.settle(now)
		}
	}
}

// handleTaints sets the pod's timeout to the longest time that is worth waiting for any
// node, and its error to the taint of that node. It changes nothing if a node has no
// taint against the pod, because the scheduler will notice that node.
func (s *stuckPods) handleTaints(w *waiting, nodes []corev1.Node) {
	pressure := otherTimeout
	if !s.idleSince.IsZero() {
		pressure = pressureTimeout
	}
	var best *NeverStarts
	var longest time.Duration
	for _, node := range nodes {
		if cluster.IsVirtual(node.Labels) {
			continue
		}
		against := untolerated(node.Spec.Taints, w.tolerations)
		if len(against) == 0 {
			return
		}
		timeout, why := judgeNode(node.Name, against, pressure)
		if best == nil || timeout > longest {
			longest, best = timeout, why
		}
	}
	if best != nil {
		t := w.current()
		best.Object, best.Reason = t.err.Object, t.err.Reason
		t.timeout, t.err = longest, best
	}
}

// judgeNode returns the time to wait for a node, and an error about the taint that is least
// likely to be removed. pressure is the time to wait until memory or disk pressure ends.
func judgeNode(node string, against []corev1.Taint, pressure time.Duration) (time.Duration, *NeverStarts) {
	var why *NeverStarts
	var shortest time.Duration
	for _, taint := range against {
		timeout, remedy := judgeTaint(node, taint, pressure)
		if why == nil || timeout < shortest {
			shortest = timeout
			why = &NeverStarts{Message: fmt.Sprintf("node %s has the taint %s", node, taint.ToString()), Remedy: remedy}
		}
	}
	return shortest, why
}

// judgeTaint returns the time to wait until a taint is removed, and the remedy if
// it stays.
func judgeTaint(node string, taint corev1.Taint, pressure time.Duration) (timeout time.Duration, remedy string) {
	switch taint.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeNetworkUnavailable:
		// These taints stay for a while after the node is ready, longer on a slow host.
		return otherTimeout, "look for the reason in the log of the node role, which --debug-dir DIR keeps"
	case corev1.TaintNodeMemoryPressure:
		return pressure, "ask Slurm for more memory (--mem)"
	case corev1.TaintNodeDiskPressure:
		return pressure, "free space where the run has its files, or name another place with --state-dir DIR"
	case corev1.TaintNodeUnschedulable:
		return idleTimeout, "open the node again: kubectl uncordon " + node
	default:
		return idleTimeout, "give the pod a toleration for it, or remove it: kubectl taint node " + node + " " + taint.Key + "-"
	}
}

// untolerated returns the taints that keep a pod with these tolerations away.
func untolerated(taints []corev1.Taint, tolerations []corev1.Toleration) []corev1.Taint {
	var against []corev1.Taint
	for _, taint := range taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(tolerations, taint) {
			against = append(against, taint)
		}
	}
	return against
}

func tolerates(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	for _, toleration := range tolerations {
		// The comparison operators are for numeric values; the scheduler disables
		// them by default.
		if toleration.ToleratesTaint(klog.Background(), &taint, false) {
			return true
		}
	}
	return false
}

func (c *Client) nodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := c.dynamic.Resource(nodeResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := make([]corev1.Node, len(list.Items))
	for i := range list.Items {
		if err := fromUnstructured(&list.Items[i], &nodes[i]); err != nil {
			return nil, fmt.Errorf("read node %s: %w", list.Items[i].GetName(), err)
		}
	}
	return nodes, nil
}
