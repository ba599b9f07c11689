package workload

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	fieldManager = "berth"
	// applyTimeout bounds how long an object is tried again for a reason
	// that passes: a definition not yet served, a namespace's service account
	// not yet made, a webhook's pod not yet up.
	applyTimeout = 25 * time.Second
	applyPause   = 10 * time.Millisecond
	// deletionTimeout bounds the wait for the deletion of an object with the name of a new
	// one. It is longer than the default grace period of a pod.
	deletionTimeout = 45 * time.Second
	// maxApplyPause keeps the retries of a slow reason cheap.
	maxApplyPause = 500 * time.Millisecond
)

// Apply creates the objects, or updates existing ones, and returns the server's
// versions. Namespaces and custom resource definitions go first, then objects
// that pods refer to. The rest keeps the order of the manifests.
func (c *Client) Apply(ctx context.Context, objects []Object) ([]Object, error) {
	ordered := slices.Clone(objects)
	slices.SortStableFunc(ordered, func(a, b Object) int { return rank(a) - rank(b) })
	applied := make([]Object, 0, len(ordered))
	var before earlier
	for _, object := range ordered {
		before.definitions = before.definitions || defines(object)
		result, created, err := c.applyRetrying(ctx, object, before)
		if err != nil {
			return applied, fmt.Errorf("apply %s from %s: %w", object.Name(), object.Source, err)
		}
		applied = append(applied, Object{Unstructured: result, Source: object.Source, Created: created})
		before.pods = before.pods || runs(object)
	}
	return applied, nil
}

// earlier holds the previously applied objects that may supply something a later
// object lacks.
type earlier struct {
	// definitions of kinds, and pods, which can create anything.
	definitions, pods bool
}

func rank(object Object) int {
	switch object.GetKind() {
	case "Namespace":
		return 0
	case "CustomResourceDefinition":
		return 1
	case "ServiceAccount", "ConfigMap", "Secret", "PriorityClass":
		// A pod is refused without its account, and one that lacks another of
		// these is looked at again only ten seconds later.
		return 2
	default:
		return 3
	}
}

// defines reports whether an object defines new kinds.
func defines(object Object) bool {
	return object.GetKind() == "CustomResourceDefinition" || object.GetKind() == "APIService"
}

// applyRetrying applies an object. It repeats the attempt for applyTimeout while the error
// may pass. The error for an unknown kind may pass only after kinds were defined.
func (c *Client) applyRetrying(ctx context.Context, object Object, before earlier) (*unstructured.Unstructured, bool, error) {
	began := time.Now()
	for pause := applyPause; ; pause = min(2*pause, maxApplyPause) {
		result, created, err := c.applyOnce(ctx, object)
		again, limit := passes(err, before) || unanswered(err) && c.repeatable(object), applyTimeout
		if errors.Is(err, errBeingDeleted) {
			again, limit = true, deletionTimeout
		}
		if err == nil || !again || time.Since(began) > limit {
			return result, created, err
		}
		select {
		case <-ctx.Done():
			return nil, false, errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// applyOnce creates or updates an object, and reports whether it has created it.
func (c *Client) applyOnce(ctx context.Context, object Object) (*unstructured.Unstructured, bool, error) {
	resource, err := c.resource(object)
	if err != nil {
		return nil, false, err
	}
	created, err := resource.Create(ctx, object.Unstructured, metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	if !apierrors.IsAlreadyExists(err) || object.GetName() == "" {
		return created, true, err
	}
	if c.owner != "" {
		found, err := c.owned(ctx, resource, object)
		return found, true, err
	}
	if c.shared && runsOnce(object) {
		return nil, false, fmt.Errorf("%w: it would run once for two runs; wait for the other, delete it (kubectl delete %s %s -n %s), or give this one another name",
			err, strings.ToLower(object.GetKind()), object.GetName(), object.GetNamespace())
	}
	// Create comes first because in a fresh cluster it nearly always works
	// and costs half as much.
	body, err := object.MarshalJSON()
	if err != nil {
		return nil, false, err
	}
	force := true
	patched, err := resource.Patch(ctx, object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
		FieldManager: fieldManager, Force: &force, FieldValidation: metav1.FieldValidationStrict,
	})
	return patched, false, err
}

// errBeingDeleted reports that an object of that name is being deleted, or was just deleted.
var errBeingDeleted = errors.New("an object of that name is still being deleted; wait until it is gone")

// owned returns the existing object of that name if the client's owner owns it. In that case
// an earlier request of Apply has created it, and the answer was lost. For an object of another
// owner, or of none, owned returns an error, which is errBeingDeleted if the object will
// soon be gone.
func (c *Client) owned(ctx context.Context, resource dynamic.ResourceInterface, object Object) (*unstructured.Unstructured, error) {
	found, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errBeingDeleted
	case err != nil:
		return nil, err
	case found.GetDeletionTimestamp() != nil:
		return nil, errBeingDeleted
	}
	owners := found.GetOwnerReferences()
	for _, owner := range owners {
		if owner.UID == c.owner {
			return found, nil
		}
	}
	const name = "give this one another name, or metadata.generateName instead of metadata.name"
	if len(owners) == 0 {
		return nil, fmt.Errorf("it exists already: %s, or delete the other first (kubectl delete %s %s -n %s)",
			name, strings.ToLower(object.GetKind()), object.GetName(), object.GetNamespace())
	}
	if c.orphaned(ctx, object.GetNamespace(), owners) {
		return nil, errBeingDeleted
	}
	return nil, fmt.Errorf("it exists already and belongs to %s %s: %s", owners[0].Kind, owners[0].Name, name)
}

// orphaned reports whether all owners of an object are Jobs that do not exist any more or are
// being deleted, as after the end of another run. The garbage collector then deletes the object.
func (c *Client) orphaned(ctx context.Context, namespace string, owners []metav1.OwnerReference) bool {
	for _, owner := range owners {
		if owner.Kind != "Job" {
			return false
		}
		found, err := c.dynamic.Resource(jobResource).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) || err == nil && found.GetUID() == owner.UID && found.GetDeletionTimestamp() == nil {
			return false
		}
	}
	return true
}

// Mapping returns the API resource of a kind, and its scope: namespaces or the whole cluster. It
// returns a NoMatchError (meta.IsNoMatchError) for a kind that the cluster does not have.
func (c *Client) Mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset() // the definition of the kind may be new
		mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	return mapping, err
}

// resource finds the endpoint of an object and defaults its namespace.
func (c *Client) resource(object Object) (dynamic.ResourceInterface, error) {
	mapping, err := c.Mapping(object.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	resource := c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return resource, nil
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	return resource.Namespace(object.GetNamespace()), nil
}

// unanswered reports whether the API server gave no answer to a request, as when it
// was killed. The supervisor starts it again.
func unanswered(err error) bool {
	var transport *url.Error
	return errors.As(err, &transport)
}

// repeatable reports whether an object can be applied again if it is unknown whether
// it was created. An object with a generated name would be created twice. In a shared
// cluster, one that runs once could be another run's.
func (c *Client) repeatable(object Object) bool {
	return object.GetName() != "" && (c.owner != "" || !(c.shared && runsOnce(object)))
}

// passes reports whether an error may be gone a moment later.
func passes(err error, before earlier) bool {
	switch {
	case meta.IsNoMatchError(err):
		return before.definitions
	case apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsTimeout(err), apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err):
		return true
	case apierrors.IsForbidden(err):
		// Every namespace is given an account of the name default.
		return strings.Contains(err.Error(), "error looking up service account") &&
			(before.pods || strings.Contains(err.Error(), `serviceaccount "default" not found`))
	case apierrors.IsNotFound(err):
		return strings.Contains(err.Error(), "namespaces")
	default:
		return false
	}
}
