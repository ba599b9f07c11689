package control

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/objects"
	"berth.dev/berth/internal/kube/usage"
)

// Names of the objects that every berth cluster has besides upstream's.
const (
	dnsService = "kube-dns"
	// defaultStorageClass is the class of claims that name none. Its volumes
	// are directories of the node where the pod runs.
	defaultStorageClass = "local"
	// provisioner names the provisioner of defaultStorageClass.
	provisioner = "berth.dev/local"
	// defaultClassAnnotation is upstream's, which keeps it internal.
	defaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"
	// managedBy marks the objects that berth made.
	managedBy = "berth"
)

// User names in the certificates of the clients that are not upstream's, or
// whose name upstream only binds roles to.
const (
	userDNS               = "system:" + cluster.UserDNS
	userProvisioner       = "system:" + cluster.UserProvisioner
	userControllerManager = "system:kube-controller-manager"
	userProxy             = "system:kube-proxy"
	policyReader          = "berth:network-policy"
)

// No error of kube-apiserver's is final while it starts.
const (
	addonRetry   = 10 * time.Millisecond
	addonTimeout = 30 * time.Second
)

// addonRoles returns the roles of the clients that are part of berth. They belong
// to the seed, because these clients start together with kube-apiserver.
func addonRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: addonMeta("", name), Rules: rules}
	}
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
	}
	return []rbacv1.ClusterRole{
		role(userDNS,
			rule("", read, "services", "pods", "namespaces"),
			rule(discoveryv1.GroupName, read, "endpointslices")),
		role(userProvisioner,
			rule("", append(read, "create", "delete", "patch", "update"), "persistentvolumes"),
			rule("", append(read, "patch", "update"), "persistentvolumeclaims"),
			rule("", read, "nodes"),
			rule("", []string{"create", "patch", "update"}, "events"),
			rule(storagev1.GroupName, read, "storageclasses")),
		metricsReader(),
		role(policyReader,
			rule("", read, "pods", "namespaces"),
			rule(networkingv1.GroupName, read, "networkpolicies")),
	}
}

// metricsReader lets everybody who may view a namespace see what its pods use.
// It has the name that metrics-server gives it.
func metricsReader() rbacv1.ClusterRole {
	role := rbacv1.ClusterRole{
		ObjectMeta: addonMeta("", "system:aggregated-metrics-reader"),
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{usage.GroupVersion.Group}, Verbs: []string{"get", "list"}, Resources: []string{"pods", "nodes"},
		}},
	}
	for _, to := range []string{"view", "edit", "admin"} {
		role.Labels["rbac.authorization.k8s.io/aggregate-to-"+to] = "true"
	}
	return role
}

// listMetrics adds the metrics API to the list of API groups, which is made from
// APIService objects; kube-apiserver creates them only for the groups it knows.
// It does not change an existing object, because that may lead to the user's
// metrics-server.
func listMetrics(ctx context.Context, config *rest.Config) error {
	client, err := apiregistration.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the role's client: %w", err)
	}
	version := usage.GroupVersion
	service := &apiregistrationv1.APIService{
		ObjectMeta: addonMeta("", version.Version+"."+version.Group),
		Spec: apiregistrationv1.APIServiceSpec{
			Group: version.Group, Version: version.Version,
			GroupPriorityMinimum: metricsPriority, VersionPriority: metricsPriority,
		},
	}
	return retry(ctx, "create API service "+service.Name, func() error {
		_, err := client.APIServices().Create(ctx, service, metav1.CreateOptions{FieldManager: managedBy})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// addonBindings binds these roles to the clients. The controllers share one
// identity, which therefore may do everything: upstream's alternative, a
// service account for each, costs a hundred requests before the first
// controller runs, and buys nothing where they share a process with the
// cluster's CA.
func addonBindings() []rbacv1.ClusterRoleBinding {
	bind := func(name, role, user string) rbacv1.ClusterRoleBinding {
		return rbacv1.ClusterRoleBinding{
			ObjectMeta: addonMeta("", name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}
	}
	return []rbacv1.ClusterRoleBinding{
		bind(userDNS, userDNS, userDNS),
		bind(userProvisioner, userProvisioner, userProvisioner),
		// A node's network is made from the objects that kube-proxy may read.
		bind(policyReader, policyReader, userProxy),
		bind("berth:controller-manager", "cluster-admin", userControllerManager),
	}
}

// metricsPriority is metrics-server's, below all of Kubernetes' own groups: its
// resources are also called pods and nodes.
const metricsPriority = 100

// addAddons adds berth's own objects of every cluster, and the API's own
// Service. The Services belong to the seed because of upstream's check of their
// addresses, which kube-apiserver runs once during its start. If the check sees
// a Service before its address, it fails for good, and kube-apiserver ends a
// minute later.
func (s *seeder) addAddons(plan cluster.Plan) {
	for _, service := range []*corev1.Service{apiService(plan), clusterDNS(plan)} {
		s.add("services/specs/"+service.Namespace+"/"+service.Name, service)
		s.add("ipaddresses/"+service.Spec.ClusterIP, objects.Address(service, service.Spec.ClusterIP))
	}
	slice := clusterDNSEndpoints(plan)
	s.add("endpointslices/"+slice.Namespace+"/"+slice.Name, slice)
	classes := []*storagev1.StorageClass{storageClass()}
	if plan.SharedVolumes != "" {
		classes = append(classes, sharedClass())
	}
	for _, class := range classes {
		s.add("storageclasses/"+class.Name, class)
	}
}

// retry calls a function until it succeeds.
func retry(ctx context.Context, what string, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(addonRetry):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %w)", what, context.Cause(ctx), err)
		}
	}
}

func addonMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels: map[string]string{"app.kubernetes.io/managed-by": managedBy},
	}
}

// apiService returns the Service that pods use to reach the API, as upstream's
// controller creates it. The controller adds the endpoints.
func apiService(plan cluster.Plan) *corev1.Service {
	return withAddress(plan.Addresses.APIService, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "kubernetes",
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{
			Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(plan.Addresses.APIPort)),
		}}},
	})
}

// withAddress fills in what kube-apiserver adds to a Service besides defaults.
func withAddress(address netip.Addr, service *corev1.Service) *corev1.Service {
	family := corev1.IPv4Protocol
	if address.Is6() {
		family = corev1.IPv6Protocol
	}
	service.Spec.ClusterIP = address.String()
	service.Spec.ClusterIPs = []string{address.String()}
	service.Spec.IPFamilies = []corev1.IPFamily{family}
	service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	return service
}

// clusterDNS returns the Service of the cluster's DNS. CoreDNS is a process of
// the node, not a pod, so the Service has no selector and berth writes its
// endpoints. Clients and tests look for this name and label.
func clusterDNS(plan cluster.Plan) *corev1.Service {
	meta := addonMeta(metav1.NamespaceSystem, dnsService)
	meta.Labels["k8s-app"] = dnsService
	meta.Labels["kubernetes.io/cluster-service"] = "true"
	meta.Labels["kubernetes.io/name"] = "CoreDNS"
	return withAddress(plan.Addresses.DNSService, &corev1.Service{
		ObjectMeta: meta,
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(53)},
			{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(53)},
			{Name: "metrics", Port: 9153, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(9153)},
		}},
	})
}

func clusterDNSEndpoints(plan cluster.Plan) *discoveryv1.EndpointSlice {
	meta := addonMeta(metav1.NamespaceSystem, dnsService+"-berth")
	meta.Generation = 1
	meta.Labels[discoveryv1.LabelServiceName] = dnsService
	meta.Labels[discoveryv1.LabelManagedBy] = managedBy
	port := func(name string, number int32, protocol corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{plan.Addresses.DNS.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			// No node's name: every node answers at this address itself.
		}},
		Ports: []discoveryv1.EndpointPort{
			port("dns", 53, corev1.ProtocolUDP),
			port("dns-tcp", 53, corev1.ProtocolTCP),
			port("metrics", 9153, corev1.ProtocolTCP),
		},
	}
}

// storageClass makes a volume only when the pod's node is known, because a
// directory exists on one node only.
func storageClass() *storagev1.StorageClass {
	meta := addonMeta("", defaultStorageClass)
	meta.Annotations = map[string]string{defaultClassAnnotation: "true"}
	return &storagev1.StorageClass{
		ObjectMeta:        meta,
		Provisioner:       provisioner,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// sharedClass keeps the content of its volumes, because it belongs to the user.
func sharedClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:        addonMeta("", cluster.SharedClass),
		Provisioner:       cluster.SharedProvisioner,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimRetain),
		VolumeBindingMode: new(storagev1.VolumeBindingImmediate),
	}
}
