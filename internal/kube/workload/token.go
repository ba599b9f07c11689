package workload

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// tokenSeconds outlasts any job; the token ends with its cluster.
const tokenSeconds = 365 * 24 * 60 * 60

// AdminToken makes a service account of kube-system that may do everything, and
// returns a token for it.
func (c *Client) AdminToken(ctx context.Context, name string) (string, error) {
	meta := metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}
	accounts := corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	for _, part := range []struct {
		resource  schema.GroupVersionResource
		namespace string
		object    any
	}{
		{accounts, meta.Namespace, &corev1.ServiceAccount{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta,
		}},
		{rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), "", &rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: meta.Namespace}},
		}},
	} {
		if _, err := c.create(ctx, part.resource, part.namespace, part.object); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("make service account %s: %w", name, err)
		}
	}
	seconds := int64(tokenSeconds)
	made, err := c.create(ctx, accounts, meta.Namespace, &authenticationv1.TokenRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		ObjectMeta: meta, Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, "token")
	if err != nil {
		return "", fmt.Errorf("make a token of service account %s: %w", name, err)
	}
	token, _, err := unstructured.NestedString(made.Object, "status", "token")
	return token, err
}

func (c *Client) create(ctx context.Context, resource schema.GroupVersionResource, namespace string, object any, subresource ...string) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	return c.dynamic.Resource(resource).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{}, subresource...)
}
