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
	defaultStorageClass = cluster.LocalClass
	// provisioner names the provisioner of defaultStorageClass.
	provisioner = "berth.dev/local"
	// defaultClassAnnotation is upstream's annotation of the default class. Upstream
	// exports no constant for it.
	defaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"
	// managedBy marks the objects that berth made.
	managedBy = "berth"
)

// User names in the certificates of clients. userControllerManager and userProxy are
// upstream's names, which upstream's role bindings refer to.
const (
	userDNS               = "system:" + cluster.UserDNS
	userProvisioner       = "system:" + cluster.UserProvisioner
	userControllerManager = "system:kube-controller-manager"
	userProxy             = "system:kube-proxy"
	policyReader          = "berth:network-policy"
)

// While kube-apiserver starts, none of its errors is final. Requests are repeated every
// addonRetry. addonTimeout limits the attempts to publish the API.
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

// listMetrics adds the metrics API to the list of API groups, which kube-apiserver makes
// from APIService objects. kube-apiserver creates these objects only for the groups that
// it knows. listMetrics does not change an existing object, because it may refer to the
// user's own metrics-server.
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

// addonBindings returns the bindings of the roles in addonRoles to their clients. The
// controllers share one identity, which therefore has all permissions. Upstream's
// alternative is a service account for each. That costs a hundred requests before the
// first controller runs, and protects nothing, because the controllers share a process
// with the cluster's CA.
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
		// kube-proxy's client on each node also reads the network policies.
		bind(policyReader, policyReader, userProxy),
		bind("berth:controller-manager", "cluster-admin", userControllerManager),
	}
}

// metricsPriority is the group priority that metrics-server uses. It is below the
// priority of Kubernetes' own groups, because the resources of the metrics API are also
// called pods and nodes.
const metricsPriority = 100

// addAddons adds the objects that every berth cluster has, and the Service of the API.
// The seed contains the Services because kube-apiserver checks their addresses once
// during its start. If the check finds a Service before its IPAddress object, it fails
// permanently, and kube-apiserver ends a minute later.
func (s *seeder) addAddons(plan cluster.Plan) {
	for _, service := range []*corev1.Service{apiService(plan), clusterDNS(plan)} {
		s.add("services/specs/"+service.Namespace+"/"+service.Name, service)
		s.add("ipaddresses/"+service.Spec.ClusterIP, objects.Address(service, service.Spec.ClusterIP))
	}
	slice := clusterDNSEndpoints(plan)
	s.add("endpointslices/"+slice.Namespace+"/"+slice.Name, slice)
	classes := []*storagev1.StorageClass{storageClass(plan)}
	if plan.SharedVolumes != "" {
		classes = append(classes, sharedClass())
	}
	for _, class := range classes {
		s.add("storageclasses/"+class.Name, class)
	}
}

// retry calls do until it succeeds, every addonRetry. When ctx ends, it returns an error
// with the cause of ctx and the last error of do.
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

// withAddress sets the fields that kube-apiserver allocates for a Service with this
// address, and returns the Service.
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
			// Without a node's name: every node has its own CoreDNS at this address.
		}},
		Ports: []discoveryv1.EndpointPort{
			port("dns", 53, corev1.ProtocolUDP),
			port("dns-tcp", 53, corev1.ProtocolTCP),
			port("metrics", 9153, corev1.ProtocolTCP),
		},
	}
}

// storageClass returns the default class. It provisions a volume only when the pod's node
// is known, because the volume's directory exists only on one node. Nodes of other jobs leave, and
// their directories with them, so they get no volumes.
func storageClass(plan cluster.Plan) *storagev1.StorageClass {
	meta := addonMeta("", defaultStorageClass)
	meta.Annotations = map[string]string{defaultClassAnnotation: "true"}
	class := &storagev1.StorageClass{
		ObjectMeta:        meta,
		Provisioner:       provisioner,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if plan.Seats > 0 {
		own := corev1.TopologySelectorLabelRequirement{Key: corev1.LabelHostname}
		for _, member := range plan.Members {
			own.Values = append(own.Values, member.Name)
		}
		class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{own}}}
	}
	return class
}

// sharedClass returns the class of shared volumes. It retains volumes, because their files
// belong to the user.
func sharedClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:        addonMeta("", cluster.SharedClass),
		Provisioner:       cluster.SharedProvisioner,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimRetain),
		VolumeBindingMode: new(storagev1.VolumeBindingImmediate),
	}
}
