package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

var version = schema.GroupVersion{Group: "test.berth.dev", Version: "v1"}

func addMeta(scheme *runtime.Scheme) { metav1.AddToGroupVersion(scheme, version) }

// Greeting asks for a ConfigMap that greets.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Name string `json:"name"`
	} `json:"spec"`
	Status struct {
		Greeted string `json:"greeted,omitempty"`
	} `json:"status,omitempty"`
}

// GreetingList is the response to a list request.
type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Greeting `json:"items"`
}

// DeepCopyObject copies.
func (g *Greeting) DeepCopyObject() runtime.Object {
	c := *g
	g.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// DeepCopyObject copies.
func (l *GreetingList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = nil
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Greeting))
	}
	return &c
}

type reconciler struct {
	client.Client
	scheme *runtime.Scheme
}

// Reconcile creates or updates the ConfigMap that a Greeting describes.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var greeting Greeting
	if err := r.Get(ctx, request.NamespacedName, &greeting); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	text := "hello " + greeting.Spec.Name
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, object, func() error {
		object.Data = map[string]string{"greeting": text}
		return controllerutil.SetControllerReference(&greeting, object, r.scheme)
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("keep the greeting: %w", err)
	}
	if greeting.Status.Greeted == text {
		return ctrl.Result{}, nil
	}
	greeting.Status.Greeted = text
	return ctrl.Result{}, r.Status().Update(ctx, &greeting)
}
