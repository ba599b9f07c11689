package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// ErrUndefined is wrapped by the error of CheckDefinitions for a kind that the API server does
// not serve, or not yet.
var ErrUndefined = errors.New("the cluster has no kind")

// CheckDefinitions lists the objects of each kind in a namespace. If a kind is not defined, or
// the client may not list its objects, the error contains the remedy for an administrator.
func CheckDefinitions(ctx context.Context, client dynamic.Interface, namespace string) error {
	for _, kind := range kinds.All() {
		_, err := client.Resource(kind.Resource()).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%w %s: have its administrator apply the output of 'berth slurm-jobs setup'", ErrUndefined, kind.Name)
		case apierrors.IsForbidden(err):
			return fmt.Errorf("%w: have the cluster's administrator apply the output of 'berth slurm-jobs setup'", err)
		case err != nil:
			return fmt.Errorf("list %s: %w", kind.Plural, err)
		}
	}
	return nil
}

// Install applies the definitions of the three kinds. The client needs the rights of an
// administrator. The API server serves the kinds some time after Install has returned.
func Install(ctx context.Context, client dynamic.Interface) error {
	definitions, err := kinds.Definitions()
	if err != nil {
		return err
	}
	for _, definition := range definitions {
		text, err := json.Marshal(definition)
		if err != nil {
			return err
		}
		force := true
		_, err = client.Resource(definitionsResource).Patch(ctx, definition.GetName(), types.ApplyPatchType, text,
			metav1.PatchOptions{FieldManager: "berth", Force: &force})
		if err != nil {
			return fmt.Errorf("define %s: %w", definition.GetName(), err)
		}
	}
	return nil
}

// resource returns the client for the objects of the target's kind and namespace.
func (t target) resource(client dynamic.Interface) dynamic.ResourceInterface {
	return client.Resource(t.kind.Resource()).Namespace(t.namespace)
}

// Object returns an object that the informers keep, without its spec. It returns nil if there is
// none.
func (c *Controller) Object(ref kinds.Reference) *unstructured.Unstructured {
	item, exists, err := c.informer[ref.Kind].GetStore().GetByKey(cache.NewObjectName(ref.Namespace, ref.Name).String())
	if err != nil || !exists {
		return nil
	}
	return item.(*unstructured.Unstructured)
}

// References lists the objects that the informers keep.
func (c *Controller) References() []kinds.Reference {
	var all []kinds.Reference
	for kind, informer := range c.informer {
		for _, item := range informer.GetStore().List() {
			object := item.(*unstructured.Unstructured)
			all = append(all, kinds.Reference{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()})
		}
	}
	return all
}

func hasFinalizer(object *unstructured.Unstructured) bool {
	return slices.Contains(object.GetFinalizers(), Finalizer)
}

// addFinalizer adds the finalizer to an object, unless it has it, and returns the new version.
func (c *Controller) addFinalizer(ctx context.Context, t target, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if hasFinalizer(object) {
		return object, nil
	}
	changed, err := setFinalizers(ctx, c.client, t, object, append(object.GetFinalizers(), Finalizer))
	if err != nil {
		return object, err
	}
	return changed, nil
}

// RemoveFinalizer removes the finalizer of an object, and reports whether the object had it.
func RemoveFinalizer(ctx context.Context, client dynamic.Interface, kind kinds.Kind, object *unstructured.Unstructured) (bool, error) {
	if !hasFinalizer(object) {
		return false, nil
	}
	rest := slices.DeleteFunc(object.GetFinalizers(), func(name string) bool { return name == Finalizer })
	_, err := setFinalizers(ctx, client, targetOf(kind, object), object, rest)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// setFinalizers sets the finalizers of an object if the API server still has this version of it.
func setFinalizers(ctx context.Context, client dynamic.Interface, t target, object *unstructured.Unstructured, names []string) (*unstructured.Unstructured, error) {
	return patch(ctx, client, t, map[string]any{"metadata": map[string]any{
		"uid": string(object.GetUID()), "resourceVersion": object.GetResourceVersion(), "finalizers": names,
	}})
}

// patch merges changes into an object or a subresource, and returns the new version.
func patch(ctx context.Context, client dynamic.Interface, t target, changes map[string]any, subresources ...string) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(changes)
	if err != nil {
		return nil, err
	}
	return t.resource(client).Patch(ctx, t.name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: "berth"}, subresources...)
}

// writeStatus writes the differences between two statuses. It returns nil if the object does not
// exist any more.
func (c *Controller) writeStatus(ctx context.Context, t target, object *unstructured.Unstructured, was, next kinds.Status) error {
	_, err := c.patchStatus(ctx, t, object, was, next, "")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patchStatus writes the differences between two statuses, and returns the new version of the
// object. If version is not empty and the API server has another version, it returns a
// conflict. It also returns an error if the object has been replaced by one with another UID.
func (c *Controller) patchStatus(ctx context.Context, t target, object *unstructured.Unstructured, was, next kinds.Status, version string) (*unstructured.Unstructured, error) {
	next.SetOperatorFields(t.kind)
	changes, err := difference(was, next)
	if err != nil || len(changes) == 0 {
		return object, err
	}
	metadata := map[string]any{"uid": string(object.GetUID())}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	return patch(ctx, c.client, t, map[string]any{"metadata": metadata, "status": changes}, "status")
}

// difference returns the fields of next that differ from was, and null for missing fields.
func difference(was, next kinds.Status) (map[string]any, error) {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&was)
	if err != nil {
		return nil, err
	}
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&next)
	if err != nil {
		return nil, err
	}
	changes := map[string]any{}
	for name, value := range after {
		if !reflect.DeepEqual(before[name], value) {
			changes[name] = value
		}
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			changes[name] = nil
		}
	}
	return changes, nil
}
