package usage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// GroupVersion is the API's group and version.
var GroupVersion = v1beta1.SchemeGroupVersion

// NewScheme returns a scheme with the API's objects.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}

// Install adds the API to a server that does not run yet. Nodes and pods come
// from informers that the server also has for its Node authorizer.
func Install(s *server.GenericAPIServer, shared informers.SharedInformerFactory, kubelets kubeletclient.KubeletClientConfig) error {
	nodes, pods := shared.Core().V1().Nodes().Lister(), shared.Core().V1().Pods().Lister()
	connections, err := kubeletclient.NewNodeConnectionInfoGetter(
		kubeletclient.NodeGetterFunc(func(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
			return nodes.Get(name)
		}), kubelets)
	if err != nil {
		return fmt.Errorf("make the metrics API's client of kubelets: %w", err)
	}
	scheme := NewScheme()
	group := server.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, serializer.NewCodecFactory(scheme))
	asked := &source{connections: connections, nodes: map[types.UID]*history{}}
	group.VersionedResourcesStorageMap[GroupVersion.Version] = map[string]rest.Storage{
		"nodes": &nodeStorage{nodes: nodes, source: asked},
		"pods":  &podStorage{nodes: nodes, pods: pods, source: asked},
	}
	if err := s.InstallAPIGroup(&group); err != nil {
		return fmt.Errorf("install the metrics API: %w", err)
	}
	return nil
}
