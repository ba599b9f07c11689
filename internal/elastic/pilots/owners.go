package pilots

import (
	"context"
	"errors"
	"fmt"

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
	byPod  map[types.UID][]wishes.Owner
}

func newOwners(config *rest.Config) (*owners, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &owners{client: client, byPod: map[types.UID][]wishes.Owner{}}, nil
}

// read reads the objects above pods that wait, and forgets the objects above other pods. Pods that share
// objects cause one request for each object.
func (o *owners) read(ctx context.Context, pods []*corev1.Pod) error {
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
	byPod := map[types.UID][]wishes.Owner{}
	var errs []error
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || !waits(pod) && !gated(pod) {
			continue
		}
		all, known := o.byPod[pod.UID]
		if !known && len(errs) == 0 {
			var err error
			if all, err = wishes.Owners(ctx, get, pod); err != nil {
				errs = append(errs, err)
			} else {
				known = true
			}
		}
		if known {
			byPod[pod.UID] = all
		}
	}
	o.byPod = byPod
	return errors.Join(errs...)
}

// of returns the objects above a pod, and known reports whether they were read.
func (o *owners) of(pod *corev1.Pod) []wishes.Owner { return o.byPod[pod.UID] }

func (o *owners) known(pod *corev1.Pod) bool {
	_, known := o.byPod[pod.UID]
	return known
}
