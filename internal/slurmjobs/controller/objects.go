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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

func (t target) key() string {
	if t.namespace == "" {
		return t.name
	}
	return t.namespace + "/" + t.name
}

func (c *Controller) resource(t target) dynamic.ResourceInterface {
	return c.client.Resource(t.kind.Resource()).Namespace(t.namespace)
}

// ErrUndefined is wrapped by errors for a kind that the cluster does not have, or not yet.
var ErrUndefined = errors.New("the cluster has no kind")

// CheckDefinitions returns an error with a remedy if a kind is not defined, or its objects
// in a namespace may not be read.
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

// Install defines the three kinds in a cluster whose administrator the caller is.
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

func hasFinalizer(object *unstructured.Unstructured) bool {
	return slices.Contains(object.GetFinalizers(), Finalizer)
}

// addFinalizer returns the object with the finalizer.
func (c *Controller) addFinalizer(ctx context.Context, t target, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if hasFinalizer(object) {
		return object, nil
	}
	with, err := c.setFinalizers(ctx, t, object, append(object.GetFinalizers(), Finalizer))
	if err != nil {
		return object, err
	}
	return with, nil
}

// dropFinalizer lets the object go when it is deleted.
func (c *Controller) dropFinalizer(ctx context.Context, t target, object *unstructured.Unstructured) error {
	if !hasFinalizer(object) {
		return nil
	}
	_, err := DropFinalizer(ctx, c.client, t.kind, object)
	return err
}

// DropFinalizer lets an object go when it is deleted, and reports whether it was kept.
func DropFinalizer(ctx context.Context, client dynamic.Interface, kind kinds.Kind, object *unstructured.Unstructured) (bool, error) {
	if !hasFinalizer(object) {
		return false, nil
	}
	rest := slices.DeleteFunc(object.GetFinalizers(), func(name string) bool { return name == Finalizer })
	c := &Controller{client: client}
	_, err := c.setFinalizers(ctx, targetOf(kind, object), object, rest)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (c *Controller) setFinalizers(ctx context.Context, t target, object *unstructured.Unstructured, names []string) (*unstructured.Unstructured, error) {
	return c.patch(ctx, t, map[string]any{"metadata": map[string]any{
		"uid": string(object.GetUID()), "resourceVersion": object.GetResourceVersion(), "finalizers": names,
	}})
}

func (c *Controller) patch(ctx context.Context, t target, patch map[string]any, subresources ...string) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return c.resource(t).Patch(ctx, t.name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: "berth"}, subresources...)
}

// writeStatus writes what differs between two statuses. An object that is gone needs none.
func (c *Controller) writeStatus(ctx context.Context, t target, object *unstructured.Unstructured, was, next kinds.Status) error {
	_, err := c.patchStatus(ctx, t, object, was, next, "")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patchStatus writes what differs between two statuses, if the object's version is the
// given one. Without a version it writes to any, of the same UID.
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
	return c.patch(ctx, t, map[string]any{"metadata": metadata, "status": changes}, "status")
}

// difference returns the fields of next that differ, and null for missing ones.
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
