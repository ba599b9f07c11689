package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// The kinds of steps. This program knows a SlurmJob only by its documented fields, as a program
// that was written for WLM-Operator does.
var (
	podKind      = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	slurmJobKind = schema.GroupVersionKind{Group: "wlm.sylabs.io", Version: "v1alpha1", Kind: "SlurmJob"}
)

// Words for the end of a step, which pods and SlurmJobs share, and for the end of a pipeline.
const (
	succeeded = "Succeeded"
	failed    = "Failed"
)

func newObject(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

// reconciler runs the steps of each pipeline, one after the other. A pipeline is a ConfigMap
// whose key steps holds manifests.
type reconciler struct {
	client.Client
	scheme *runtime.Scheme
}

// Reconcile creates the object of the next step, or stores the pipeline's end in the key state.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var pipeline corev1.ConfigMap
	if err := r.Get(ctx, request.NamespacedName, &pipeline); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if pipeline.Data["state"] != "" {
		return ctrl.Result{}, nil
	}
	steps, err := read(pipeline.Data["steps"])
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the steps: %w", err)
	}
	for _, step := range steps {
		outcome, reason, err := r.step(ctx, &pipeline, step)
		switch {
		case err != nil:
			return ctrl.Result{}, fmt.Errorf("step %s: %w", step.GetName(), err)
		case outcome == failed:
			return ctrl.Result{}, r.end(ctx, &pipeline, fmt.Sprintf("%s at step %s: %s", failed, step.GetName(), reason))
		case outcome != succeeded:
			return ctrl.Result{}, nil // its next change calls Reconcile
		}
	}
	return ctrl.Result{}, r.end(ctx, &pipeline, succeeded)
}

// read returns the manifests of steps.
func read(text string) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	var steps []*unstructured.Unstructured
	for {
		step := &unstructured.Unstructured{}
		err := decoder.Decode(&step.Object)
		if errors.Is(err, io.EOF) {
			return steps, nil
		}
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
}

// step creates the object of a step, unless it exists, and returns how it ended. The outcome is
// another word while the step has not ended.
func (r *reconciler) step(ctx context.Context, pipeline *corev1.ConfigMap, step *unstructured.Unstructured) (outcome, reason string, err error) {
	wanted := step.DeepCopy()
	wanted.SetNamespace(pipeline.Namespace)
	wanted.SetName(pipeline.Name + "-" + step.GetName())
	object := newObject(wanted.GroupVersionKind())
	err = r.Get(ctx, client.ObjectKeyFromObject(wanted), object)
	if apierrors.IsNotFound(err) {
		if err := controllerutil.SetControllerReference(pipeline, wanted, r.scheme); err != nil {
			return "", "", err
		}
		return "", "", client.IgnoreAlreadyExists(r.Create(ctx, wanted))
	}
	if err != nil {
		return "", "", err
	}
	word := "status"
	if object.GetKind() == podKind.Kind {
		word = "phase"
	}
	outcome, _, _ = unstructured.NestedString(object.Object, "status", word)
	reason, _, _ = unstructured.NestedString(object.Object, "status", "message")
	return outcome, reason, nil
}

// end stores the end of a pipeline.
func (r *reconciler) end(ctx context.Context, pipeline *corev1.ConfigMap, state string) error {
	pipeline.Data["state"] = state
	return r.Update(ctx, pipeline)
}
