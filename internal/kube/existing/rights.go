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

// reviewsAtOnce is the number of questions about rights to ask at the same time.
const reviewsAtOnce = 8

// right is an operation on the objects of a resource, such as "get" on "pods/log".
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

// followRights returns the rights to own objects and to follow them.
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

// checkRights returns an error that names the rights that the user lacks. If the API server
// does not say, checkRights returns nil.
func (c *Cluster) checkRights(ctx context.Context, needed []right) error {
	slices.SortFunc(needed, func(a, b right) int { return cmp.Compare(a.String(), b.String()) })
	needed = slices.Compact(needed)
	denied := make([]bool, len(needed))
	var reviews errgroup.Group
	reviews.SetLimit(reviewsAtOnce)
	for i, r := range needed {
		reviews.Go(func() error {
			denied[i] = c.lacks(ctx, r)
			return nil
		})
	}
	_ = reviews.Wait() // there is no error
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

// user returns the name of the kubeconfig's user, or USER if the API server does not tell.
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

// ask creates an object that only asks a question.
func (c *Cluster) ask(ctx context.Context, resource schema.GroupVersionResource, question any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(question)
	if err != nil {
		return nil, err
	}
	return c.Client.Dynamic().Resource(resource).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
}
