package process

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// parseName parses the name of an object, such as cow or bridgejob/cow. It returns the kinds that
// the object may have, and its name without a kind.
func parseName(name string) (possible []kinds.Kind, bare string) {
	kindName, rest, qualified := strings.Cut(name, "/")
	if !qualified {
		return kinds.All(), name
	}
	for _, kind := range kinds.All() {
		if strings.EqualFold(kindName, kind.Name) || kindName == kind.Plural {
			possible = append(possible, kind)
		}
	}
	return possible, rest
}

// find returns the object with a name that parseName parses.
func find(ctx context.Context, client dynamic.Interface, namespace, name string) (*unstructured.Unstructured, error) {
	possible, bare := parseName(name)
	if len(possible) == 0 {
		return nil, fmt.Errorf("no kind %q: use bridgejob, slurmjob or wlmjob", strings.TrimSuffix(name, "/"+bare))
	}
	for _, kind := range possible {
		object, err := client.Resource(kind.Resource()).Namespace(namespace).Get(ctx, bare, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return object, err
		}
	}
	return nil, fmt.Errorf("no object %s in namespace %s", bare, namespace)
}

// Remove removes the controller's finalizer from the named objects of a namespace, or from all of
// them without names. It cancels no job, and calls report for each object whose job may still
// exist. It returns an error if a controller holds the lease.
func Remove(ctx context.Context, config *rest.Config, namespace string, names []string, report func(object, job string)) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if holder, err := controller.Leader(ctx, client, namespace); err != nil {
		return err
	} else if holder != "" {
		return fmt.Errorf("controller %s serves namespace %s, and does this itself: delete the objects, or end it first", holder, namespace)
	}
	found := 0
	for _, kind := range kinds.All() {
		objects, err := client.Resource(kind.Resource()).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Plural, err)
		}
		for _, object := range objects.Items {
			if len(names) > 0 && !named(kind, object.GetName(), names) {
				continue
			}
			found++
			removed, err := controller.RemoveFinalizer(ctx, client, kind, &object)
			if err != nil {
				return fmt.Errorf("remove the finalizer of %s %s: %w", kind.Name, object.GetName(), err)
			}
			if status, err := kinds.StatusOf(&object); err == nil && removed && status.JobID != "" && !kinds.Ended(status.State) {
				report(kind.Name+" "+object.GetName(), status.JobID)
			}
		}
	}
	if found == 0 && len(names) > 0 {
		return fmt.Errorf("no object %s in namespace %s", strings.Join(names, ", "), namespace)
	}
	return nil
}

// named reports whether one of the names is that of an object. parseName parses the names.
func named(kind kinds.Kind, name string, names []string) bool {
	return slices.ContainsFunc(names, func(want string) bool {
		possible, bare := parseName(want)
		return bare == name && slices.Contains(possible, kind)
	})
}
