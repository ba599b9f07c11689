package workload

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// missingTimeout bounds the wait for an object that a pod lacks and nothing can
// create. The manifests' objects exist before anything is followed; controllers
// need this time to make pods of them.
const missingTimeout = 2 * time.Second

// reference names an object in the pod's namespace that the pod needs to start. key is the
// entry that the object must have; empty for any.
type reference struct {
	resource, kind, name, key string
}

func (r reference) String() string {
	if r.key != "" {
		return fmt.Sprintf("key %q of %s %q", r.key, r.kind, r.name)
	}
	return fmt.Sprintf("%s %q", r.kind, r.name)
}

// references returns all references of a pod, without the optional ones.
func references(spec corev1.PodSpec) []reference {
	var all []reference
	add := func(resource, kind, name string, optional *bool, keys ...string) {
		if name == "" || optional != nil && *optional {
			return
		}
		if len(keys) == 0 {
			keys = []string{""}
		}
		for _, key := range keys {
			all = append(all, reference{resource, kind, name, key})
		}
	}
	configMap := func(name string, optional *bool, keys ...string) {
		add("configmaps", "ConfigMap", name, optional, keys...)
	}
	secret := func(name string, optional *bool, keys ...string) { add("secrets", "Secret", name, optional, keys...) }

	add("serviceaccounts", "ServiceAccount", spec.ServiceAccountName, nil)
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, from := range container.EnvFrom {
			if from.ConfigMapRef != nil {
				configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			}
			if from.SecretRef != nil {
				secret(from.SecretRef.Name, from.SecretRef.Optional)
			}
		}
		for _, variable := range container.Env {
			if from := variable.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				configMap(from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional, from.ConfigMapKeyRef.Key)
			}
			if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil {
				secret(from.SecretKeyRef.Name, from.SecretKeyRef.Optional, from.SecretKeyRef.Key)
			}
		}
	}
	for _, volume := range spec.Volumes {
		if v := volume.ConfigMap; v != nil {
			configMap(v.Name, v.Optional, keysOf(v.Items)...)
		}
		if v := volume.Secret; v != nil {
			secret(v.SecretName, v.Optional, keysOf(v.Items)...)
		}
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if v := source.ConfigMap; v != nil {
				configMap(v.Name, v.Optional, keysOf(v.Items)...)
			}
			if v := source.Secret; v != nil {
				secret(v.Name, v.Optional, keysOf(v.Items)...)
			}
		}
	}
	return all
}

func keysOf(items []corev1.KeyToPath) []string {
	var keys []string
	for _, item := range items {
		keys = append(keys, item.Key)
	}
	return keys
}

// lacking returns the pods and owners that may wait for a missing object. It returns none
// while a pod is left that could create the object.
func (s *stuckPods) lacking(now time.Time) []*waiting {
	if !s.nothingLives() {
		return nil
	}
	var all []*waiting
	for _, group := range s.groups() {
		for _, w := range group {
			t := w.current()
			if t == nil || !w.followed || t.effect != mendable || t.timeout == noTimeout || now.Sub(w.since) < missingTimeout {
				continue
			}
			switch t.class {
			case classConfig, classVolumes, classCreation:
				all = append(all, w)
			}
		}
	}
	return all
}

// lookAtReferences ends the wait for pods whose object certainly does not exist. It changes
// nothing if the API server does not answer in time.
func (f *follower) lookAtReferences(ctx context.Context) {
	if f.streams.Existing && time.Since(f.looked) < existingPeriod {
		return
	}
	f.looked = time.Now()
	ctx, cancel := context.WithTimeout(ctx, stuckPeriod)
	defer cancel()
	for _, w := range f.stuck.lacking(time.Now()) {
		for _, needed := range w.needs {
			if f.client.lacks(ctx, w.namespace, needed) {
				t := w.current()
				t.timeout = noTimeout
				t.err.Message = needed.String() + " does not exist, and nothing is left that could create it"
				t.err.Remedy = "put it into the manifests, or correct its name"
				break
			}
		}
	}
}

// lacks reports whether the referenced object certainly does not exist.
func (c *Client) lacks(ctx context.Context, namespace string, needed reference) bool {
	resource := schema.GroupVersionResource{Version: "v1", Resource: needed.resource}
	object, err := c.dynamic.Resource(resource).Namespace(namespace).Get(ctx, needed.name, metav1.GetOptions{})
	if err != nil || needed.key == "" {
		return apierrors.IsNotFound(err)
	}
	for _, field := range []string{"data", "binaryData"} {
		if _, found, _ := unstructured.NestedString(object.Object, field, needed.key); found {
			return false
		}
	}
	return true
}

// runs reports whether an object has pods.
func runs(object Object) bool {
	t, err := newTarget(object)
	return t != nil || err != nil || makesPods(object)
}

// makesPods reports whether an object has pods that are not followed.
func makesPods(object Object) bool {
	switch kind := object.GroupVersionKind(); kind.Group + "/" + kind.Kind {
	case "batch/CronJob", "/ReplicationController":
		return true
	}
	return false
}
