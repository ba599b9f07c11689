package existing

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxReviews is the number of access reviews to request at the same time.
const maxReviews = 8

// right is a verb that RBAC allows on a resource, such as "get" on "pods/log".
type right struct {
	verb, group, resource, subresource string
}

func (r right) String() string {
	name := r.resource
	if r.group != "" {
		name += "." + r.group
	}
	if r.subresource != "" {
		name += "/" + r.subresource
	}
	return r.verb + " " + name
}

// followRights returns the rights that each run needs: to create and move its owner, and to
// follow its pods.
func followRights() []right {
	var needed []right
	for _, verb := range []string{"create", "get", "list", "watch", "patch", "delete"} {
		needed = append(needed, right{verb: verb, group: "batch", resource: "jobs"})
	}
	for _, verb := range []string{"get", "list", "watch"} {
		needed = append(needed, right{verb: verb, resource: "pods"})
	}
	return append(needed, right{verb: "get", resource: "pods", subresource: "log"},
		right{verb: "list", resource: "events"}, right{verb: "watch", resource: "events"})
}

// objectRights returns the rights to apply and remove the objects of a resource.
func objectRights(resource schema.GroupResource) []right {
	var needed []right
	for _, verb := range []string{"create", "get", "delete"} {
		needed = append(needed, right{verb: verb, group: resource.Group, resource: resource.Resource})
	}
	return needed
}

// checkRights returns an error that lists the rights that the user lacks. Rights about which
// the API server gives no answer count as granted.
func (c *Cluster) checkRights(ctx context.Context, needed []right) error {
	slices.SortFunc(needed, func(a, b right) int { return cmp.Compare(a.String(), b.String()) })
	needed = slices.Compact(needed)
	denied := make([]bool, len(needed))
	var reviews errgroup.Group
	reviews.SetLimit(maxReviews)
	for i, r := range needed {
		reviews.Go(func() error {
			denied[i] = c.lacks(ctx, r)
			return nil
		})
	}
	_ = reviews.Wait() // the functions return no error
	var missing []string
	for i, r := range needed {
		if denied[i] {
			missing = append(missing, r.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	user := c.user(ctx)
	return fmt.Errorf("in the namespace %s, the user of the kubeconfig (%s) has no right to: %s; ask the cluster's administrator for them, for example: kubectl create rolebinding berth-edit --clusterrole=edit --user=%s -n %s",
		c.Namespace, user, strings.Join(missing, ", "), user, c.Namespace)
}

// lacks reports whether the API server says that the user does not have a right.
func (c *Cluster) lacks(ctx context.Context, r right) bool {
	review := &authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: c.Namespace, Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource,
		}},
	}
	answer, err := c.ask(ctx, authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews"), review)
	if err != nil {
		return false
	}
	allowed, found, _ := unstructured.NestedBool(answer.Object, "status", "allowed")
	return found && !allowed
}

// user returns the API server's name of the kubeconfig's user, or "USER" if it does not answer.
func (c *Cluster) user(ctx context.Context) string {
	review := &authenticationv1.SelfSubjectReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectReview"},
	}
	answer, err := c.ask(ctx, authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews"), review)
	if err == nil {
		if name, _, _ := unstructured.NestedString(answer.Object, "status", "userInfo", "username"); name != "" {
			return name
		}
	}
	return "USER"
}

// ask creates a review, such as a SelfSubjectAccessReview, and returns it with its status. The
// API server stores no such object.
func (c *Cluster) ask(ctx context.Context, resource schema.GroupVersionResource, review any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(review)
	if err != nil {
		return nil, err
	}
	return c.Client.Dynamic().Resource(resource).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
}
