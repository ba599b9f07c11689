package workload

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// Dynamic returns the connection, for other writers to the same API server.
func (c *Client) Dynamic() dynamic.Interface { return c.dynamic }

type apiObject = runtime.Object

// Client applies and follows workloads on one API server.
type Client struct {
	dynamic dynamic.Interface
	rest    rest.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	// shared reports whether others apply workloads to the same cluster.
	shared bool
	// owner is the UID of the object that owns everything that Apply creates, or empty.
	owner types.UID
}

// Own makes Apply refuse each existing object that the owner, an object with this UID, does
// not own. The objects to apply must have an owner reference to it.
func (c *Client) Own(owner types.UID) { c.owner = owner }

// Share makes Apply refuse existing objects that decide a result, because
// several runs share the cluster.
func (c *Client) Share() { c.shared = true }

// NewClient connects with the given kubeconfig. It makes no request.
func NewClient(kubeconfig []byte) (*Client, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	// No one else uses the API server: its priority and fairness suffice.
	config.QPS = -1
	config.UserAgent = "berth"
	config.WarningHandler = rest.NoWarnings{}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make HTTP client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make discovery client: %w", err)
	}
	return &Client{
		dynamic: dynamicClient,
		rest:    discoveryClient.RESTClient(),
		mapper:  restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient)),
	}, nil
}
