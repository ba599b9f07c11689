package pilots

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/elastic/wishes"
)

// owners keeps the objects above the pods that wait. An object that changes later does not change
// the wishes of its pods.
type owners struct {
	client dynamic.Interface

	mu    sync.Mutex
	byPod map[types.UID][]wishes.Owner
}

func newOwners(config *rest.Config) (*owners, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // read sends one request after the other
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &owners{client: client, byPod: map[types.UID][]wishes.Owner{}}, nil
}

// readOwners reads the objects above pods that wait, as they come, until ctx ends.
func (l *Loop) readOwners(ctx context.Context) {
	if !l.view.awaitSync(ctx) {
		return
	}
	for ctx.Err() == nil {
		err := l.owners.read(ctx, l.view.pods(), func() { l.changed(); signal(l.known) })
		if err != nil && ctx.Err() == nil {
			l.Log.Debug("read the objects above pods: " + err.Error())
			time.AfterFunc(firstPause, func() { signal(l.arrived) })
		}
		select {
		case <-l.arrived:
		case <-ctx.Done():
		}
	}
}

// read reads the objects above pods that wait, and forgets the objects above other pods. Pods that
// share objects cause one request for each object. read calls known after each pod.
func (o *owners) read(ctx context.Context, pods []*corev1.Pod, known func()) error {
	objects := map[wishes.Reference]*unstructured.Unstructured{}
	get := func(ctx context.Context, of wishes.Reference) (*unstructured.Unstructured, error) {
		if object, ok := objects[of]; ok {
			return object, nil
		}
		object, err := o.client.Resource(of.GroupVersionResource).Namespace(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			object = nil
		case err != nil:
			return nil, err
		}
		objects[of] = object
		return object, nil
	}
	unplaced := map[types.UID]bool{}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			continue
		}
		unplaced[pod.UID] = true
		if o.known(pod) || !waits(pod) && !gated(pod) {
			continue
		}
		all, err := wishes.Owners(ctx, get, pod)
		if err != nil {
			return err
		}
		o.mu.Lock()
		o.byPod[pod.UID] = all
		o.mu.Unlock()
		known()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.byPod, func(uid types.UID, _ []wishes.Owner) bool { return !unplaced[uid] })
	return nil
}

// of returns the objects above a pod, and known reports whether they were read.
func (o *owners) of(pod *corev1.Pod) []wishes.Owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byPod[pod.UID]
}

func (o *owners) known(pod *corev1.Pod) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.byPod[pod.UID]
	return known
}
