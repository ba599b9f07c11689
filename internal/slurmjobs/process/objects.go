package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// find returns the object of a name, such as cow or bridgejob/cow.
func find(ctx context.Context, client dynamic.Interface, namespace, name string) (kinds.Kind, *unstructured.Unstructured, error) {
	kindName, rest, qualified := strings.Cut(name, "/")
	if qualified {
		name = rest
	}
	known := false
	for _, kind := range kinds.All() {
		if qualified && !strings.EqualFold(kindName, kind.Name) && kindName != kind.Plural {
			continue
		}
		known = true
		object, err := client.Resource(kind.Resource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return kind, object, nil
		}
		if !apierrors.IsNotFound(err) {
			return kind, nil, err
		}
	}
	if !known {
		return kinds.Kind{}, nil, fmt.Errorf("no kind %q: use bridgejob, slurmjob or wlmjob", kindName)
	}
	return kinds.Kind{}, nil, fmt.Errorf("no object %s in namespace %s", name, namespace)
}

// logInterval is the time between two looks at a file that is followed.
const logInterval = time.Second / 2

// Logs writes the standard output of an object's job, which is a file of this host. If
// follow is set, it waits for more until the job has ended.
func Logs(ctx context.Context, config *rest.Config, namespace, name string, follow bool, out io.Writer) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	var file *os.File
	for {
		_, object, err := find(ctx, client, namespace, name)
		if err != nil {
			return err
		}
		status, err := kinds.StatusOf(object)
		if err != nil {
			return err
		}
		ended := kinds.Ended(status.State) || status.State == kinds.Rejected
		if file == nil && status.Output != "" {
			file, err = openRegular(status.Output)
			if err != nil && (!errors.Is(err, os.ErrNotExist) || ended || !follow) {
				return fmt.Errorf("read the output of job %s: %w", status.JobID, err)
			}
			if file != nil {
				defer file.Close()
			}
		}
		if file != nil {
			if _, err := io.Copy(out, file); err != nil {
				return fmt.Errorf("read the output of job %s: %w", status.JobID, err)
			}
		}
		switch {
		case file == nil && (ended || !follow):
			return fmt.Errorf("%s %s has no output: its state is %q; %s", object.GetKind(), object.GetName(), status.State, status.Message)
		case ended || !follow:
			return nil
		}
		select {
		case <-time.After(logInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Remove lets the objects of a namespace go without their controller. It cancels no job,
// and calls report for each object whose job may still exist. It refuses while a controller
// holds the lease.
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
	removed := 0
	for _, kind := range kinds.All() {
		objects, err := client.Resource(kind.Resource()).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Plural, err)
		}
		for _, object := range objects.Items {
			if len(names) > 0 && !named(kind, object.GetName(), names) {
				continue
			}
			removed++
			dropped, err := controller.RemoveFinalizer(ctx, client, kind, &object)
			if err != nil {
				return fmt.Errorf("release %s %s: %w", kind.Name, object.GetName(), err)
			}
			if status, err := kinds.StatusOf(&object); err == nil && dropped && status.JobID != "" && !kinds.Ended(status.State) {
				report(kind.Name+" "+object.GetName(), status.JobID)
			}
		}
	}
	if removed == 0 && len(names) > 0 {
		return fmt.Errorf("no object %s in namespace %s", strings.Join(names, ", "), namespace)
	}
	return nil
}

func named(kind kinds.Kind, name string, names []string) bool {
	for _, want := range names {
		if kindName, rest, qualified := strings.Cut(want, "/"); qualified {
			if rest == name && (strings.EqualFold(kindName, kind.Name) || kindName == kind.Plural) {
				return true
			}
		} else if want == name {
			return true
		}
	}
	return false
}
