package pilots

import (
	"context"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// view is the part of the cluster that plans depend on.
type view struct {
	informers                         []cache.SharedIndexInformer
	podStore, nodeStore, claims, disk cache.Store
}

// newView returns a view that calls changed when something changes.
func newView(client core.CoreV1Interface, changed func()) *view {
	v := &view{}
	watch := func(resource string, kind runtime.Object) cache.Store {
		informer := cache.NewSharedIndexInformer(
			cache.NewListWatchFromClient(client.RESTClient(), resource, corev1.NamespaceAll, fields.Everything()), kind, 0, cache.Indexers{})
		// Both fail only after the start.
		_ = informer.SetTransform(trim)
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(was, is any) { changedIf(was, is, changed) },
			DeleteFunc: func(any) { changed() },
		})
		v.informers = append(v.informers, informer)
		return informer.GetStore()
	}
	v.podStore, v.nodeStore = watch("pods", &corev1.Pod{}), watch("nodes", &corev1.Node{})
	v.claims, v.disk = watch("persistentvolumeclaims", &corev1.PersistentVolumeClaim{}), watch("persistentvolumes", &corev1.PersistentVolume{})
	return v
}

// changedIf omits updates of a node's status that change no condition: kubelets report images and
// times.
func changedIf(was, is any, changed func()) {
	before, ok := was.(*corev1.Node)
	after, isNode := is.(*corev1.Node)
	if ok && isNode && before.Generation == after.Generation && sameNode(before, after) {
		return
	}
	changed()
}

func sameNode(a, b *corev1.Node) bool {
	ready := func(n *corev1.Node) (status corev1.ConditionStatus) {
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				status = condition.Status
			}
		}
		return status
	}
	return ready(a) == ready(b) && len(a.Spec.Taints) == len(b.Spec.Taints) && len(a.Status.Allocatable) == len(b.Status.Allocatable) && a.Spec.Unschedulable == b.Spec.Unschedulable
}

// trim removes what plans do not need.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		o.ManagedFields = nil
		o.Status.ContainerStatuses, o.Status.InitContainerStatuses = nil, nil
		for i := range o.Spec.Containers {
			c := &o.Spec.Containers[i]
			o.Spec.Containers[i] = corev1.Container{Name: c.Name, Resources: c.Resources, Ports: c.Ports}
		}
		for i := range o.Spec.InitContainers {
			c := &o.Spec.InitContainers[i]
			o.Spec.InitContainers[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		}
	case *corev1.Node:
		o.ManagedFields, o.Status.Images = nil, nil
	}
	return object, nil
}

// run follows the cluster until ctx ends.
func (v *view) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, informer := range v.informers {
		group.Go(func() error {
			informer.RunWithContext(ctx)
			return nil
		})
	}
	return group.Wait()
}

// awaitSync reports whether everything was read before ctx ended.
func (v *view) awaitSync(ctx context.Context) bool {
	var synced []cache.InformerSynced
	for _, informer := range v.informers {
		synced = append(synced, informer.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

func (v *view) pods() []*corev1.Pod   { return list[corev1.Pod](v.podStore) }
func (v *view) nodes() []*corev1.Node { return list[corev1.Node](v.nodeStore) }

// claim and volume return an object, or nil.
func (v *view) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	found, _, _ := v.claims.GetByKey(namespace + "/" + name)
	claim, _ := found.(*corev1.PersistentVolumeClaim)
	return claim
}

func (v *view) volume(name string) *corev1.PersistentVolume {
	found, _, _ := v.disk.GetByKey(name)
	volume, _ := found.(*corev1.PersistentVolume)
	return volume
}

func list[T any](store cache.Store) []*T {
	var all []*T
	for _, item := range store.List() {
		if object, ok := item.(*T); ok {
			all = append(all, object)
		}
	}
	return all
}
