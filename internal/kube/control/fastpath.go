package control

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	api "k8s.io/kubernetes/pkg/apis/core"

	"berth.dev/berth/internal/base/cluster"
)

// namespaceFastPath is an admission plugin. It copies the annotation
// cluster.FastPathAnnotation from a namespace to each new pod without one, because a node
// cannot read the namespace before it makes the pod's containers. It refuses invalid
// values: with a typo in the value "off", pods would have the fast path.
type namespaceFastPath struct {
	*admission.Handler
	client     kubernetes.Interface
	namespaces listers.NamespaceLister
}

const fastPathPlugin = "NamespaceFastPath"

// addFastPathPlugin adds the plugin to kube-apiserver's.
func addFastPathPlugin(o *options.AdmissionOptions) {
	o.Plugins.Register(fastPathPlugin, func(io.Reader) (admission.Interface, error) {
		return &namespaceFastPath{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
	// Put the plugin first, so that webhooks and policies, which come last, see its
	// changes.
	o.RecommendedPluginOrder = append([]string{fastPathPlugin}, o.RecommendedPluginOrder...)
}

// SetExternalKubeClientSet implements initializer.WantsExternalKubeClientSet.
func (p *namespaceFastPath) SetExternalKubeClientSet(c kubernetes.Interface) { p.client = c }

// SetExternalKubeInformerFactory implements initializer.WantsExternalKubeInformerFactory.
func (p *namespaceFastPath) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	namespaces := f.Core().V1().Namespaces()
	p.namespaces = namespaces.Lister()
	p.SetReadyFunc(namespaces.Informer().HasSynced)
}

// ValidateInitialization implements admission.InitializationValidator.
func (p *namespaceFastPath) ValidateInitialization() error {
	if p.client == nil || p.namespaces == nil {
		return errors.New("the plugin has no client or no namespaces")
	}
	return nil
}

// Admit implements admission.MutationInterface.
func (p *namespaceFastPath) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	if namespace, ok := a.GetObject().(*api.Namespace); ok {
		return checkFastPath(a, namespace.Annotations)
	}
	pod, isPod := a.GetObject().(*api.Pod)
	if !isPod || a.GetOperation() != admission.Create {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("namespaces are not known yet"))
	}
	if _, own := pod.Annotations[cluster.FastPathAnnotation]; own {
		return checkFastPath(a, pod.Annotations)
	}
	namespace, err := p.namespaces.Get(a.GetNamespace())
	if apierrors.IsNotFound(err) {
		// The namespace may be newer than the cache.
		namespace, err = p.client.CoreV1().Namespaces().Get(ctx, a.GetNamespace(), metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil // upstream's plugin NamespaceLifecycle refuses the pod
	}
	if err != nil {
		return fmt.Errorf("look at the namespace of pod %s: %w", pod.Name, err)
	}
	if said, ok := namespace.Annotations[cluster.FastPathAnnotation]; ok {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[cluster.FastPathAnnotation] = said
	}
	return nil
}

// checkFastPath returns an error if the annotation has an invalid value.
func checkFastPath(a admission.Attributes, annotations map[string]string) error {
	switch said, ok := annotations[cluster.FastPathAnnotation]; {
	case !ok, said == cluster.FastPathAuto, said == cluster.FastPathOff:
		return nil
	default:
		return admission.NewForbidden(a, fmt.Errorf("annotation %s is %q: give %q or %q",
			cluster.FastPathAnnotation, said, cluster.FastPathAuto, cluster.FastPathOff))
	}
}

var (
	_ admission.MutationInterface                  = (*namespaceFastPath)(nil)
	_ initializer.WantsExternalKubeClientSet       = (*namespaceFastPath)(nil)
	_ initializer.WantsExternalKubeInformerFactory = (*namespaceFastPath)(nil)
)
