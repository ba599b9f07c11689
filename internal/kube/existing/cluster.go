package existing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"berth.dev/berth/internal/kube/workload"
)

const (
	// reachPause is the first interval between attempts to reach the API server. It doubles
	// after each attempt, up to maxReachPause. reachTimeout bounds one attempt.
	reachPause    = time.Second
	maxReachPause = 10 * time.Second
	reachTimeout  = 15 * time.Second
)

// Cluster is one namespace of an existing cluster, used with the rights of a kubeconfig's
// user.
type Cluster struct {
	// Kubeconfig has only the current context. It contains the certificates and keys that
	// the file names, and absolute paths of token files.
	Kubeconfig []byte
	Namespace  string
	Client     *workload.Client
	file       string // path of the kubeconfig
	server     string // URL of the API server
}

// Open reads the kubeconfig file and returns the cluster of its current context. It sends no
// request. If namespace is empty, the context's namespace is used, or else "default".
func Open(file, namespace string) (*Cluster, error) {
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if config.CurrentContext == "" {
		return nil, fmt.Errorf("read kubeconfig %s: it has no current context; choose one: kubectl --kubeconfig %s config use-context NAME", file, file)
	}
	err = clientcmdapi.MinifyConfig(config)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(config)
	}
	if err == nil {
		err = clientcmdapi.FlattenConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", file, err)
	}
	c := &Cluster{Namespace: namespace, file: file}
	current := config.Contexts[config.CurrentContext]
	if c.Namespace == "" {
		c.Namespace = current.Namespace
	}
	if c.Namespace == "" {
		c.Namespace = metav1.NamespaceDefault
	}
	if cluster := config.Clusters[current.Cluster]; cluster != nil {
		c.server = cluster.Server
	}
	if c.Kubeconfig, err = clientcmd.Write(*config); err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", file, err)
	}
	if c.Client, err = workload.NewClient(c.Kubeconfig); err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", file, err)
	}
	return c, nil
}

// Reach waits until the API server answers. It tries again after every error until ctx ends,
// except when the API server refuses the user or has no Jobs. It calls inform once, before the
// second attempt.
func (c *Cluster) Reach(ctx context.Context, inform func(string)) error {
	for pause, first := reachPause, true; ; pause, first = min(2*pause, maxReachPause), false {
		err := c.reach(ctx)
		switch {
		case err == nil:
			return nil
		case apierrors.IsUnauthorized(err):
			return fmt.Errorf("reach the API server %s: it does not accept the credentials in %s, which may have expired: %w; log in again, or ask the cluster's administrator for new ones", c.server, c.file, err)
		case apierrors.IsForbidden(err), meta.IsNoMatchError(err):
			return fmt.Errorf("use the API server %s of %s: %w", c.server, c.file, err)
		case ctx.Err() != nil:
			return fmt.Errorf("reach the API server %s of %s: %w (%w); try 'kubectl --kubeconfig %s get pods' on this host", c.server, c.file, err, context.Cause(ctx), c.file)
		}
		if first {
			inform(fmt.Sprintf("waiting for the API server %s of %s: %v", c.server, c.file, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// reach queries API discovery once, which all authenticated users may do.
func (c *Cluster) reach(ctx context.Context) error {
	// Client.Mapping calls API discovery, which takes no context.
	answer := make(chan error, 1)
	go func() {
		_, err := c.Client.Mapping(batchv1.SchemeGroupVersion.WithKind("Job"))
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(reachTimeout):
		return fmt.Errorf("no answer for %s", reachTimeout)
	}
}

// Prepare sets the namespace of the objects. It returns all errors about the objects: an
// unknown kind, a kind without a namespace, or another namespace. If there are none, it
// returns an error if the namespace or rights of the user are missing.
func (c *Cluster) Prepare(ctx context.Context, objects []workload.Object) error {
	var problems []error
	needed := followRights()
	for _, object := range objects {
		mapping, err := c.Client.Mapping(object.GroupVersionKind())
		switch namespace := object.GetNamespace(); {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s from %s: %w", object.Name(), object.Source, err))
			continue
		case mapping.Scope.Name() != meta.RESTScopeNameNamespace:
			problems = append(problems, fmt.Errorf("%s from %s belongs to no namespace, so it would outlive the job and concern other users of the cluster: remove it from the manifests, and let the cluster's administrator apply it", object.Name(), object.Source))
			continue
		case namespace != "" && namespace != c.Namespace:
			problems = append(problems, fmt.Errorf("%s from %s is in the namespace %s, but a run has only one, %s: remove metadata.namespace, or give --namespace %s", object.Name(), object.Source, namespace, c.Namespace, namespace))
			continue
		}
		object.SetNamespace(c.Namespace)
		needed = append(needed, objectRights(mapping.Resource.GroupResource())...)
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	if err := c.checkNamespace(ctx); err != nil {
		return err
	}
	return c.checkRights(ctx, needed)
}

// Explain adds the remedy to an error of the API server about an exceeded quota, and returns
// other errors unchanged.
func Explain(err error) error {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
		return fmt.Errorf("%w; delete objects that count towards the quota, lower the requests, or ask the cluster's administrator for a larger one", err)
	}
	return err
}

// checkNamespace returns an error if the API server says that the namespace does not exist. A
// user who may not read namespaces gets that error when the first object is created.
func (c *Cluster) checkNamespace(ctx context.Context) error {
	_, err := c.Client.Dynamic().Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(ctx, c.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the cluster of %s has no namespace %s: name another one (--namespace), or create it: kubectl --kubeconfig %s create namespace %s", c.file, c.Namespace, c.file, c.Namespace)
	}
	return nil
}
