package usage

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// nodeStorage and podStorage implement the storage of the metrics API. They measure an
// object when a client requests it, and store nothing. So there is no watch.
type (
	nodeStorage struct {
		table
		nodes  listers.NodeLister
		source *source
	}
	podStorage struct {
		table
		nodes  listers.NodeLister
		pods   listers.PodLister
		source *source
	}
)

var (
	_ rest.Getter               = &nodeStorage{}
	_ rest.Lister               = &nodeStorage{}
	_ rest.Scoper               = &nodeStorage{}
	_ rest.KindProvider         = &nodeStorage{}
	_ rest.SingularNameProvider = &nodeStorage{}
	_ rest.Getter               = &podStorage{}
	_ rest.Lister               = &podStorage{}
	_ rest.Scoper               = &podStorage{}
	_ rest.KindProvider         = &podStorage{}
	_ rest.SingularNameProvider = &podStorage{}
)

func (*nodeStorage) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (*nodeStorage) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (*nodeStorage) Destroy()                {}
func (*nodeStorage) Kind() string            { return "NodeMetrics" }
func (*nodeStorage) NamespaceScoped() bool   { return false }
func (*nodeStorage) GetSingularName() string { return "" }

// Get measures one node. It returns NotFound if the node does not exist or its usage is
// unknown, and ServiceUnavailable if its kubelet does not answer.
func (n *nodeStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	node, err := n.nodes.Get(name)
	if err != nil {
		return nil, err
	}
	reading := n.source.read(ctx, []*corev1.Node{node})[0]
	if reading.err != nil {
		return nil, errors.NewServiceUnavailable(reading.err.Error())
	}
	measured, known := nodeMetrics(node, reading)
	if !known {
		return nil, errors.NewNotFound(metrics.Resource("nodes"), name)
	}
	return &measured, nil
}

// List measures all nodes that match the selectors. It omits nodes that do not answer.
func (n *nodeStorage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(options)
	nodes, err := n.nodes.List(byLabel)
	if err != nil {
		return nil, err
	}
	if byLabel.Empty() {
		n.source.forget(nodes)
	}
	nodes = selected(nodes, byField)
	list := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for i, reading := range n.source.read(ctx, nodes) {
		if measured, known := nodeMetrics(nodes[i], reading); known {
			list.Items = append(list.Items, measured)
		}
	}
	return list, nil
}

func nodeMetrics(node *corev1.Node, r readings) (measured metrics.NodeMetrics, known bool) {
	if r.err != nil {
		return measured, false
	}
	u, known := between(r.base.node, r.newest.node, true)
	return metrics.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, CreationTimestamp: metav1.NewTime(u.at)},
		Timestamp:  metav1.NewTime(u.at),
		Window:     metav1.Duration{Duration: u.window},
		Usage:      u.resources(),
	}, known
}

func (*podStorage) New() runtime.Object     { return &metrics.PodMetrics{} }
func (*podStorage) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (*podStorage) Destroy()                {}
func (*podStorage) Kind() string            { return "PodMetrics" }
func (*podStorage) NamespaceScoped() bool   { return true }
func (*podStorage) GetSingularName() string { return "" }

// Get measures one pod.
func (p *podStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pod, err := p.pods.Pods(request.NamespaceValue(ctx)).Get(name)
	if err != nil {
		return nil, err
	}
	measured, err := p.measure(ctx, []*corev1.Pod{pod})
	if err != nil {
		return nil, errors.NewServiceUnavailable(err.Error())
	}
	if len(measured) == 0 {
		return nil, errors.NewNotFound(metrics.Resource("pods"), pod.Namespace+"/"+name)
	}
	return &measured[0], nil
}

// List measures all pods that match the selectors. It omits the pods of a node
// that does not answer.
func (p *podStorage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(options)
	pods, err := p.pods.Pods(request.NamespaceValue(ctx)).List(byLabel)
	if err != nil {
		return nil, err
	}
	measured, err := p.measure(ctx, selected(pods, byField))
	if len(measured) == 0 && err != nil {
		return nil, errors.NewServiceUnavailable(err.Error())
	}
	return &metrics.PodMetricsList{Items: measured}, nil
}

// measure returns the usage of pods, sorted by namespace and name. It omits pods whose
// usage is unknown, and returns the error of a node that did not answer.
func (p *podStorage) measure(ctx context.Context, pods []*corev1.Pod) ([]metrics.PodMetrics, error) {
	var nodes []*corev1.Node
	index := map[string]int{}
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if _, seen := index[name]; seen || name == "" {
			continue
		}
		if node, err := p.nodes.Get(name); err == nil {
			index[name] = len(nodes)
			nodes = append(nodes, node)
		}
	}
	answers := p.source.read(ctx, nodes)
	all := []metrics.PodMetrics{}
	var silent error
	for _, pod := range pods {
		i, known := index[pod.Spec.NodeName]
		if !known {
			continue
		}
		if err := answers[i].err; err != nil {
			silent = fmt.Errorf("measure the pods of node %s: %w", pod.Spec.NodeName, err)
			continue
		}
		if measured, known := podMetrics(pod, answers[i]); known {
			all = append(all, measured)
		}
	}
	slices.SortFunc(all, func(a, b metrics.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, silent
}

// podMetrics returns the usage of a pod's running containers. known is false if one of
// them is too new to have been measured, or if none runs.
func podMetrics(pod *corev1.Pod, r readings) (measured metrics.PodMetrics, known bool) {
	measured = metrics.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels},
	}
	volumes := r.newest.pods[container{pod.Namespace, pod.Name, ""}]
	holder := -1
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		key := container{pod.Namespace, pod.Name, c.Name}
		later, running := r.newest.containers[key]
		if !running {
			continue
		}
		earlier, had := r.base.containers[key]
		u, measurable := between(earlier, later, had)
		if !measurable {
			return measured, false
		}
		measured.Containers = append(measured.Containers, metrics.ContainerMetrics{Name: c.Name, Usage: u.resources()})
		measured.Timestamp, measured.Window = metav1.NewTime(u.at), metav1.Duration{Duration: u.window}
		measured.CreationTimestamp = measured.Timestamp
		volumes -= min(volumes, u.memory)
		if holder < 0 && mountsMemory(pod, c) {
			holder = len(measured.Containers) - 1
		}
	}
	if holder >= 0 {
		// Count the memory of volumes for the first container that mounts one. A cgroup
		// would count it for the container that wrote it.
		sum := measured.Containers[holder].Usage[corev1.ResourceMemory]
		sum.Add(*resource.NewQuantity(int64(volumes), resource.BinarySI))
		measured.Containers[holder].Usage[corev1.ResourceMemory] = sum
	}
	return measured, len(measured.Containers) > 0
}

// mountsMemory reports whether a container mounts a volume in memory.
func mountsMemory(pod *corev1.Pod, c corev1.Container) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == m.Name && v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
		})
	})
}

func (u used) resources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(math.Ceil(u.cores*1e9)), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

func selectors(options *metainternalversion.ListOptions) (labels.Selector, fields.Selector) {
	byLabel, byField := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		byLabel = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		byField = options.FieldSelector
	}
	return byLabel, byField
}

// selected returns the objects that a field selector selects.
func selected[T metav1.Object](objects []T, selector fields.Selector) []T {
	var chosen []T
	for _, object := range objects {
		if selector.Matches(fields.Set{"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace()}) {
			chosen = append(chosen, object)
		}
	}
	return chosen
}
