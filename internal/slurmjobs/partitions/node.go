package partitions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationapi "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/slurm"
)

// Labels of the Nodes. WLM-Operator's affinity compares the numbers; the time is in seconds, the
// memory in MB.
const (
	labelPartition = "wlm.sylabs.io/partition"
	labelNodes     = "wlm.sylabs.io/nodes"
	labelCPUs      = "wlm.sylabs.io/cpu-per-node"
	labelMemory    = "wlm.sylabs.io/mem-per-node"
	labelWallTime  = "wlm.sylabs.io/wall-time"
)

// Taint keeps pods away from the Nodes, unless they tolerate it.
var Taint = corev1.Taint{Key: "virtual-kubelet.io/provider", Value: "wlm", Effect: corev1.TaintEffectNoSchedule}

// preferOthers makes the scheduler prefer other nodes for pods that tolerate Taint but do not
// select a partition. Without it, the Nodes win: they are empty, and have no label for the host
// name, over which the scheduler spreads a ReplicaSet's pods.
var preferOthers = corev1.Taint{Key: "berth.dev/slurm-partition", Effect: corev1.TaintEffectPreferNoSchedule}

const (
	// NodePrefix begins the name of each Node.
	NodePrefix = "slurm-"
	component  = cluster.SlurmJobsManager
	// maxPods is the number of pods that the scheduler may bind to a Node. The controller ends
	// these pods. maxPods does not limit the pods that show jobs.
	maxPods = 1000
	// leaseSeconds is the duration of a Node's lease. kubelets have the same.
	leaseSeconds = 40
	// unlimited stands for no time limit. A label cannot be negative, and the affinity
	// requires a number.
	unlimited = math.MaxInt32
)

// newNode returns the Node of a partition. It has no label kubernetes.io/hostname, because pods
// that are to spread over hosts would wait for it, and none for the operating system, so that
// DaemonSets that select Linux stay away.
func (s *Server) newNode(partition slurm.Partition) *corev1.Node {
	pods := int64(maxPods)
	if s.Namespace != "" {
		pods = 0
	}
	nodes, wallTime := partition.MaxNodes, int64(unlimited)
	if nodes < 0 || nodes > partition.Nodes {
		nodes = partition.Nodes
	}
	if partition.MaxTime >= 0 {
		wallTime = min(wallTime, int64(partition.MaxTime/time.Second))
	}
	labels := map[string]string{
		cluster.VirtualLabel:             cluster.VirtualValue,
		cluster.ManagedByLabel:           component,
		"kubernetes.io/role":             "agent",
		corev1.LabelNodeExcludeBalancers: "true",
		labelNodes:                       strconv.FormatInt(nodes, 10),
		labelCPUs:                        strconv.FormatInt(partition.NodeCPUs, 10),
		labelMemory:                      strconv.FormatInt(partition.NodeMemoryMB, 10),
		labelWallTime:                    strconv.FormatInt(wallTime, 10),
	}
	if len(validation.IsValidLabelValue(partition.Name)) == 0 {
		labels[labelPartition] = partition.Name
	}
	message := "Slurm partition " + partition.Name
	if !partition.Up {
		partition.FreeCPUs, partition.FreeMemoryMB = 0, 0
		message += " starts no jobs now"
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(s.Host, partition.Name), Labels: labels, Annotations: map[string]string{cluster.PartitionOwner: s.Owner},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{Taint, preferOthers}},
		Status: corev1.NodeStatus{
			Capacity: resources(partition.CPUs, partition.MemoryMB, pods), Allocatable: resources(partition.FreeCPUs, partition.FreeMemoryMB, pods),
			Conditions: []corev1.NodeCondition{ready(message)},
		},
	}
	if s.Logs.IsValid() {
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: s.Logs.Addr().String()}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(s.Logs.Port())
	}
	return node
}

// ready returns the condition of a Node that is ready.
func ready(message string) corev1.NodeCondition {
	now := metav1.Now()
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Partition", Message: message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

// readyOf returns a Node's condition Ready, or nil if there is none.
func readyOf(node *corev1.Node) *corev1.NodeCondition {
	at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if at < 0 {
		return nil
	}
	return &node.Status.Conditions[at]
}

func resources(cpus, memoryMB, pods int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(cpus, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memoryMB<<20, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(pods, resource.DecimalSI),
	}
}

// nodeName returns the name of a partition's Node. A name with characters that a Node's name cannot
// have ends with a hash.
func nodeName(host, partition string) string {
	wanted := NodePrefix + host + "-" + partition
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(wanted))
	if name == wanted && len(validation.IsDNS1123Label(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(wanted))
	return name[:min(len(name), 50)] + "-" + hex.EncodeToString(sum[:4])
}

// owns reports whether Run made a Node.
func (s *Server) owns(node *corev1.Node) bool {
	return node.Labels[cluster.ManagedByLabel] == component && node.Annotations[cluster.PartitionOwner] == s.Owner
}

// put creates a Node or updates it where it differs. It returns nil for a Node that others own.
func (s *Server) put(ctx context.Context, present map[string]*corev1.Node, wanted *corev1.Node) (*corev1.Node, error) {
	node := present[wanted.Name]
	if node == nil {
		created, err := s.nodes.Create(ctx, wanted, metav1.CreateOptions{FieldManager: component})
		if err == nil {
			s.Log.Debug("partition " + wanted.Labels[labelPartition] + " is node " + wanted.Name)
			return created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create node %s: %w", wanted.Name, err)
		}
	}
	if node == nil || !s.owns(node) {
		if !s.foreign[wanted.Name] {
			s.foreign[wanted.Name] = true
			s.Log.Warn("node " + wanted.Name + " belongs to another program: the Slurm partition gets no node")
		}
		return nil, nil
	}
	labels := maps.Clone(node.Labels)
	maps.Copy(labels, wanted.Labels)
	if !maps.Equal(labels, node.Labels) {
		if err := s.patch(ctx, node, map[string]any{"metadata": map[string]any{"uid": node.UID, "labels": wanted.Labels}}); err != nil {
			return node, err
		}
	}
	if sameStatus(node, wanted) {
		return node, nil
	}
	return node, s.patchStatus(ctx, node, map[string]any{
		"capacity": wanted.Status.Capacity, "allocatable": wanted.Status.Allocatable, "conditions": wanted.Status.Conditions,
		"addresses": wanted.Status.Addresses, "daemonEndpoints": wanted.Status.DaemonEndpoints,
	})
}

// sameStatus reports whether a Node needs no new status. Times do not count.
func sameStatus(node, wanted *corev1.Node) bool {
	has, want := readyOf(node), wanted.Status.Conditions[0]
	return has != nil && has.Status == want.Status && has.Message == want.Message &&
		slices.Equal(node.Status.Addresses, wanted.Status.Addresses) && node.Status.DaemonEndpoints == wanted.Status.DaemonEndpoints &&
		equality.Semantic.DeepEqual(node.Status.Capacity, wanted.Status.Capacity) &&
		equality.Semantic.DeepEqual(node.Status.Allocatable, wanted.Status.Allocatable)
}

func (s *Server) patchStatus(ctx context.Context, node *corev1.Node, status map[string]any) error {
	return s.patch(ctx, node, map[string]any{"metadata": map[string]any{"uid": node.UID}, "status": status}, "status")
}

func (s *Server) patch(ctx context.Context, node *corev1.Node, changes map[string]any, subresources ...string) error {
	text, err := json.Marshal(changes)
	if err != nil {
		return err
	}
	_, err = s.nodes.Patch(ctx, node.Name, types.StrategicMergePatchType, text, metav1.PatchOptions{FieldManager: component}, subresources...)
	if err != nil {
		return fmt.Errorf("update node %s: %w", node.Name, err)
	}
	return nil
}

// renew renews a Node's lease. The node controller takes a Node without it for lost.
func (s *Server) renew(ctx context.Context, node *corev1.Node) error {
	now := metav1.NewMicroTime(time.Now())
	text, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now}})
	if err != nil {
		return err
	}
	_, err = s.leases.Patch(ctx, node.Name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: component})
	if apierrors.IsNotFound(err) {
		_, err = s.leases.Create(ctx, &coordinationapi.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: node.Name, Annotations: map[string]string{cluster.PartitionOwner: s.Owner},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			},
			Spec: coordinationapi.LeaseSpec{HolderIdentity: ptr.To(node.Name), LeaseDurationSeconds: ptr.To(int32(leaseSeconds)), RenewTime: &now},
		}, metav1.CreateOptions{FieldManager: component})
	}
	if err != nil {
		return fmt.Errorf("renew the lease of node %s: %w", node.Name, err)
	}
	return nil
}

// remove removes a Node. The garbage collector removes its lease.
func (s *Server) remove(ctx context.Context, node *corev1.Node) error {
	err := s.nodes.Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove node %s: %w", node.Name, err)
	}
	return nil
}
