package lease

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// conflicting refuses every update with a conflict.
type conflicting struct{ dynamic.ResourceInterface }

func (conflicting) Update(context.Context, *unstructured.Unstructured, metav1.UpdateOptions, ...string) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, leaseName, errors.New("it has changed"))
}

// silent never answers an update.
type silent struct{ dynamic.ResourceInterface }

func (silent) Update(ctx context.Context, _ *unstructured.Unstructured, _ metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
