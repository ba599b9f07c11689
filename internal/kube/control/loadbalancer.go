package control

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/service"
	"k8s.io/component-base/featuregate"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"

	"berth.dev/berth/internal/base/cluster"
)

// kubeletPort is the kubelet's port on the node's address.
const kubeletPort = 10250

// nodeBalancer implements Services of type LoadBalancer. It assigns the nodes'
// addresses, the head's first, in the IP families of the Service. Nothing needs
// to be set up: kube-proxy on every node forwards connections to these addresses
// and the Service's port (ipMode VIP, the default) directly to the pods. This
// holds for clients in pods, on nodes, and at published host ports, each of
// which leads to its own node. nodeBalancer is a provider for upstream's service
// controller, which adds the finalizer, events and retries.
//
// All Services share the addresses, so a port belongs to the first Service that
// requests it. The others wait, and an Event reports it.
type nodeBalancer struct {
	plan     cluster.Plan
	reserved map[portKey]string // the names of the programs that listen on the node itself
	services listers.ServiceLister

	mu     sync.Mutex
	claims map[portKey]types.UID
}

// portKey is a port of the nodes' addresses.
type portKey struct {
	protocol corev1.Protocol
	port     int32
}

// runLoadBalancer runs the service controller until ctx ends.
func runLoadBalancer(ctx context.Context, client kubernetes.Interface, plan cluster.Plan, features featuregate.FeatureGate) error {
	shared := informers.NewSharedInformerFactory(client, 0)
	services, nodes := shared.Core().V1().Services(), shared.Core().V1().Nodes()
	balancer := &nodeBalancer{
		plan: plan,
		reserved: map[portKey]string{
			{corev1.ProtocolTCP, int32(plan.Addresses.APIPort)}: "kube-apiserver",
			{corev1.ProtocolTCP, kubeletPort}:                   "the kubelet",
		},
		services: services.Lister(),
		claims:   map[portKey]types.UID{},
	}
	controller, err := service.New(balancer, client, services, nodes, plan.RunID, features)
	if err != nil {
		return fmt.Errorf("create the controller of load balancers: %w", err)
	}
	shared.Start(ctx.Done())
	controller.Run(ctx, 1, controllersmetrics.NewControllerManagerMetrics(managedBy))
	shared.Shutdown()
	return nil
}

// EnsureLoadBalancer claims the Service's ports, and returns the addresses of the nodes. It
// returns an error if a program of the node or another Service has one of the ports.
func (b *nodeBalancer) EnsureLoadBalancer(_ context.Context, _ string, s *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := servicePorts(s)
	for key := range wanted {
		if who, reserved := b.reserved[key]; reserved {
			return nil, fmt.Errorf("port %d/%s of the node is %s's; choose another port for the service", key.port, key.protocol, who)
		}
		if owner, claimed := b.claims[key]; claimed && owner != s.UID {
			return nil, fmt.Errorf("port %d/%s is used by another service of type LoadBalancer; choose another port", key.port, key.protocol)
		}
	}
	if err := b.checkOthers(s, wanted); err != nil {
		return nil, err
	}
	b.release(s.UID)
	for key := range wanted {
		b.claims[key] = s.UID
	}
	return b.status(s), nil
}

// checkOthers returns an error if another Service has one of the wanted ports according to
// its status. After a restart of this process, such a Service may not have claimed its
// ports again yet.
func (b *nodeBalancer) checkOthers(s *corev1.Service, wanted map[portKey]bool) error {
	others, err := b.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	for _, other := range others {
		if other.UID == s.UID || len(other.Status.LoadBalancer.Ingress) == 0 || other.DeletionTimestamp != nil {
			continue
		}
		for key := range servicePorts(other) {
			if wanted[key] {
				return fmt.Errorf("port %d/%s is used by service %s/%s; choose another port",
					key.port, key.protocol, other.Namespace, other.Name)
			}
		}
	}
	return nil
}

// GetLoadBalancer returns the addresses of the nodes, and reports whether the Service has
// claimed ports.
func (b *nodeBalancer) GetLoadBalancer(_ context.Context, _ string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, owner := range b.claims {
		if owner == s.UID {
			return b.status(s), true, nil
		}
	}
	return nil, false, nil
}

// EnsureLoadBalancerDeleted releases the Service's ports.
func (b *nodeBalancer) EnsureLoadBalancerDeleted(_ context.Context, _ string, s *corev1.Service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(s.UID)
	return nil
}

// UpdateLoadBalancer is called when nodes are added or removed. It does nothing.
func (b *nodeBalancer) UpdateLoadBalancer(context.Context, string, *corev1.Service, []*corev1.Node) error {
	return nil
}

// GetLoadBalancerName returns a name for messages.
func (b *nodeBalancer) GetLoadBalancerName(_ context.Context, _ string, s *corev1.Service) string {
	return s.Namespace + "/" + s.Name
}

func (b *nodeBalancer) status(s *corev1.Service) *corev1.LoadBalancerStatus {
	var status corev1.LoadBalancerStatus
	for _, family := range b.plan.Addresses.Families() {
		if !slices.Contains(s.Spec.IPFamilies, corev1.IPFamily(family.Name())) {
			continue
		}
		for _, address := range b.plan.NodeAddresses(family) {
			status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: address.String()})
		}
	}
	return &status
}

func (b *nodeBalancer) release(uid types.UID) {
	for key, owner := range b.claims {
		if owner == uid {
			delete(b.claims, key)
		}
	}
}

func servicePorts(s *corev1.Service) map[portKey]bool {
	ports := map[portKey]bool{}
	for _, p := range s.Spec.Ports {
		ports[portKey{p.Protocol, p.Port}] = true
	}
	return ports
}

// The rest of cloudprovider.Interface: there is no cloud.

// LoadBalancer returns b.
func (b *nodeBalancer) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return b, true }

// Initialize does nothing.
func (b *nodeBalancer) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// Instances is not implemented.
func (b *nodeBalancer) Instances() (cloudprovider.Instances, bool) { return nil, false }

// InstancesV2 is not implemented.
func (b *nodeBalancer) InstancesV2() (cloudprovider.InstancesV2, bool) { return nil, false }

// Zones is not implemented.
func (b *nodeBalancer) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters is not implemented.
func (b *nodeBalancer) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes is not implemented.
func (b *nodeBalancer) Routes() (cloudprovider.Routes, bool) { return nil, false }

// ProviderName returns "berth".
func (b *nodeBalancer) ProviderName() string { return managedBy }

// HasClusterID returns true.
func (b *nodeBalancer) HasClusterID() bool { return true }
