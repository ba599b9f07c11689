package interlink

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watch keeps a copy of all local pods until the returned function is called. The virtual node
// requests the status of one pod after the other, and through a job step, each request to the API
// server takes 40 ms or more: Slurm sends the input and output of a step in packets of 1 KiB, and the
// kernel delays the next small packet until the other host acknowledges the last one (Nagle's
// algorithm).
func (c *connected) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	pods := c.API.Pods(metav1.NamespaceAll)
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.LabelSelector = labelUID
		return options
	}
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return pods.List(ctx, selected(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, selected(options))
		},
	}, c.API)
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{}, Transform: trim,
	})
	c.pods = store
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		controller.RunWithContext(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// trim returns a pod without the fields that a status does not need.
func trim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	trimmed := *pod
	trimmed.ManagedFields, trimmed.Annotations, trimmed.Spec.Volumes = nil, nil, nil
	return &trimmed, nil
}

// watched works like find, but asks the API server only for a pod that the copy lacks, such as one
// that was just created or deleted.
func (c *connected) watched(ctx context.Context, foreign *corev1.Pod) (*corev1.Pod, error) {
	name := cache.NewObjectName(localNamespace(foreign.Namespace), localName(foreign.Name, foreign.UID))
	if item, ok, err := c.pods.GetByKey(name.String()); err == nil && ok {
		return own(item.(*corev1.Pod), foreign)
	}
	return find(ctx, c, foreign)
}
