package node

import (
	"context"
	"fmt"
	"maps"
	goruntime "runtime"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"

	"berth.dev/berth/internal/base/cluster"
)

// newNode returns the Node as the kubelet would register it. The kubelet sets its
// status, except for the Ready condition: without that one, the
// kubelet would report its readiness later.
func newNode(plan cluster.Plan) *v1.Node {
	labels := map[string]string{
		v1.LabelHostname:             plan.Node.Name,
		v1.LabelOSStable:             goruntime.GOOS,
		v1.LabelArchStable:           goruntime.GOARCH,
		"beta." + v1.LabelOSStable:   goruntime.GOOS,
		"beta." + v1.LabelArchStable: goruntime.GOARCH,
	}
	maps.Copy(labels, plan.Node.Labels)
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: plan.Node.Name, Labels: labels,
			// Kubelets set this annotation if the controller manager attaches volumes.
			Annotations: map[string]string{volumeutil.ControllerManagedAttachAnnotation: "true"},
		},
	}
	if only := labels[cluster.ForLabel]; only != "" {
		// The label brings the pods that the node is for, and the taint keeps others away.
		node.Spec.Taints = []v1.Taint{{Key: cluster.ForLabel, Value: only, Effect: v1.TaintEffectNoSchedule}}
	}
	now := metav1.Now()
	node.Status.Conditions = []v1.NodeCondition{{
		Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: "the kubelet is starting",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	node.Spec.PodCIDR = plan.Addresses.NodePods.String()
	for _, family := range plan.Addresses.Families() {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, family.NodePods.String())
	}
	return node
}

// register creates the Node. The kubelet's own registration waits for RBAC; the
// Node authorizer and NodeRestriction permit this request earlier.
func register(plan cluster.Plan) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.CoreV1().Nodes().Create(ctx, newNode(plan), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("register node %s: %w", plan.Node.Name, err)
		}
		return nil
	}
}

// watchNode follows this node's own object. It calls ready once, when the
// kubelet first reports that the node is ready, and fullDisk each time that the
// node begins to have disk pressure.
func watchNode(client kubernetes.Interface, name string, ready, fullDisk func()) (informers.SharedInformerFactory, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = metav1.ObjectNameField + "=" + name
		}))
	look := nodeHandler(ready, fullDisk)
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, object any) { look(object) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch node %s: %w", name, err)
	}
	return factory, nil
}

// nodeHandler returns a handler for the states of the Node, which must be called with one
// after the other.
func nodeHandler(ready, fullDisk func()) func(object any) {
	var isReady, isFull bool
	return func(object any) {
		node, ok := object.(*v1.Node)
		if !ok {
			return
		}
		if !isReady && has(node, v1.NodeReady) {
			isReady = true
			ready()
		}
		wasFull := isFull
		if isFull = has(node, v1.NodeDiskPressure); isFull && !wasFull {
			fullDisk()
		}
	}
}

// has reports whether a condition of the node is true.
func has(node *v1.Node, condition v1.NodeConditionType) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == condition {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
