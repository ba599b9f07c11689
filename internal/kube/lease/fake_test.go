package lease

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
)

// conflicting refuses every update with a conflict.
type conflicting struct{ dynamic.ResourceInterface }

func (conflicting) Update(context.Context, *unstructured.Unstructured, metav1.UpdateOptions, ...string) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, leaseName, errors.New("it has changed"))
}

// strict refuses annotations that are too long, as an API server does.
type strict struct{ dynamic.ResourceInterface }

func (s strict) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	if errs := validation.ValidateAnnotations(lease.GetAnnotations(), field.NewPath("metadata", "annotations")); len(errs) > 0 {
		return nil, apierrors.NewInvalid(lease.GroupVersionKind().GroupKind(), leaseName, errs)
	}
	return s.ResourceInterface.Update(ctx, lease, options)
}

// silent never answers an update.
type silent struct{ dynamic.ResourceInterface }

func (silent) Update(ctx context.Context, _ *unstructured.Unstructured, _ metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
