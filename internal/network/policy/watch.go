package policy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// mergeTime is the shortest pause between two States. Changes accumulate meanwhile,
// because many pods change at once and each State costs a pass over all of them. The pause
// is at least mergeTimes as long as the pass, which bounds the CPU share.
const (
	mergeTime  = 20 * time.Millisecond
	mergeTimes = 4
)

// retryTime is the pause after which Watch passes a State again that changed refused.
const retryTime = time.Second

// Config configures Watch.
type Config struct {
	// Core and Networking are clients of the API groups "" and
	// networking.k8s.io, which may list and watch pods, namespaces and network
	// policies.
	Core, Networking rest.Interface
	VirtualPods      []VirtualPod
	// Hints may be nil.
	Hints *Hints
}

// Hints holds addresses of pods that the API server does not know yet. The zero
// Hints is empty and ready to use.
type Hints struct {
	mu        sync.Mutex
	addresses map[types.UID][]netip.Addr
	// given is called after Give has changed an address. It may be nil.
	given func()
}

// Give sets the addresses of a pod, until the pod is deleted.
func (h *Hints) Give(uid types.UID, addresses []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(h.addresses[uid], addresses) {
		return
	}
	if h.addresses == nil {
		h.addresses = map[types.UID][]netip.Addr{}
	}
	h.addresses[uid] = addresses
	if h.given != nil {
		h.given()
	}
}

// take replaces pods that have addresses here by copies with these addresses, and returns
// pods. It forgets the addresses of deleted pods.
func (h *Hints) take(pods []*corev1.Pod) []*corev1.Pod {
	if h == nil {
		return pods
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	there := map[types.UID]bool{}
	for i, p := range pods {
		there[p.UID] = true
		if addresses := h.addresses[p.UID]; addresses != nil {
			better := *p // the store's object must not be changed
			better.Status.PodIPs = nil
			for _, a := range addresses {
				better.Status.PodIPs = append(better.Status.PodIPs, corev1.PodIP{IP: a.String()})
			}
			pods[i] = &better
		}
	}
	maps.DeleteFunc(h.addresses, func(uid types.UID, _ []netip.Addr) bool { return !there[uid] })
	return pods
}

// Watch calls changed with the current State, again after each possible change, and
// again after changed returned an error, until ctx ends. It watches pods and
// namespaces only while there are policies.
func Watch(ctx context.Context, c Config, changed func(*State) error) {
	w := &watcher{config: c, dirty: make(chan struct{}, 1)}
	if h := c.Hints; h != nil {
		h.mu.Lock()
		h.given = w.mark
		h.mu.Unlock()
	}
	w.policies = w.follow(ctx, c.Networking, "networkpolicies", &networkingv1.NetworkPolicy{})
	defer w.pause()
	for {
		select {
		case <-w.dirty:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		state := w.state(ctx)
		taken := state == nil || changed(state) == nil
		pause := max(mergeTime, mergeTimes*time.Since(began))
		if !taken {
			pause = retryTime
			w.mark()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

type watcher struct {
	config Config
	dirty  chan struct{}

	policies   follower
	pods       follower
	namespaces follower
	// stop ends the watches of pods and namespaces. It is nil without them.
	stop context.CancelFunc
}

// state returns the current State, or nil until the policies have been listed. It starts
// and stops the watches of pods and namespaces.
func (w *watcher) state(ctx context.Context) *State {
	if !w.policies.complete() {
		return nil
	}
	o := objects{Policies: listed[*networkingv1.NetworkPolicy](w.policies), VirtualPods: w.config.VirtualPods}
	if len(o.Policies) == 0 {
		w.pause()
		return &State{}
	}
	if w.stop == nil {
		watching, stop := context.WithCancel(ctx)
		w.stop = stop
		w.pods = w.follow(watching, w.config.Core, "pods", &corev1.Pod{})
		w.namespaces = w.follow(watching, w.config.Core, "namespaces", &corev1.Namespace{})
	}
	if !w.pods.complete() || !w.namespaces.complete() {
		return &State{Pending: true}
	}
	o.Pods = w.config.Hints.take(listed[*corev1.Pod](w.pods))
	o.Namespaces = listed[*corev1.Namespace](w.namespaces)
	return compile(o)
}

// pause stops the watches of pods and namespaces.
func (w *watcher) pause() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// follower keeps the objects of one kind.
type follower struct {
	store    cache.Store
	complete func() bool
}

// follow starts to watch a kind of object until ctx ends.
func (w *watcher) follow(ctx context.Context, client rest.Interface, resource string, kind runtime.Object) follower {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.mark() },
		UpdateFunc: func(any, any) { w.mark() },
		DeleteFunc: func(any) { w.mark() },
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything()),
		ObjectType:    kind,
		Handler:       handler,
		Transform:     shorten,
	})
	go controller.RunWithContext(ctx)
	go func() {
		// A list without objects makes no event.
		select {
		case <-controller.HasSyncedChecker().Done():
			w.mark()
		case <-ctx.Done():
		}
	}()
	return follower{store, controller.HasSynced}
}

// mark makes Watch compute the State again.
func (w *watcher) mark() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// shorten returns a copy of an object with only the fields that compile reads, to save
// memory. It always returns nil as the error.
func shorten(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: shortMeta(o.ObjectMeta),
			Spec: corev1.PodSpec{
				NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork,
				InitContainers: shortContainers(o.Spec.InitContainers), Containers: shortContainers(o.Spec.Containers),
			},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: shortMeta(o.ObjectMeta)}, nil
	}
	return object, nil
}

func shortMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp, Labels: m.Labels}
}

func shortContainers(containers []corev1.Container) []corev1.Container {
	var short []corev1.Container
	for _, c := range containers {
		if len(c.Ports) > 0 {
			short = append(short, corev1.Container{Ports: c.Ports})
		}
	}
	return short
}

func listed[T any](f follower) []T {
	var all []T
	for _, object := range f.store.List() {
		if o, ok := object.(T); ok {
			all = append(all, o)
		}
	}
	return all
}
