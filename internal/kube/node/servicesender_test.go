package node

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/network/policy"
	"berth.dev/berth/internal/network/servicemap"
)

const servicePort = "100.66.0.7:80"

func sentService(t *testing.T, service *v1.Service, endpoints ...discoveryv1.Endpoint) servicemap.Service {
	t.Helper()
	sender := newServiceSender("n1", nil)
	service.ObjectMeta = metav1.ObjectMeta{Namespace: "a", Name: "s"}
	service.Spec.ClusterIP, service.Spec.ClusterIPs = "100.66.0.7", []string{"100.66.0.7"}
	if service.Spec.InternalTrafficPolicy == nil { // as the API server fills in
		service.Spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyCluster)
	}
	service.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
	service.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol}
	service.Spec.Ports = append(service.Spec.Ports, v1.ServicePort{Name: "p", Port: 80, Protocol: v1.ProtocolTCP})
	sender.OnServiceAdd(service)
	sender.OnEndpointSliceAdd(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("p"), Port: ptr.To[int32](8080), Protocol: ptr.To(v1.ProtocolTCP)}},
	})
	if sender.state() != nil {
		t.Error("it sends before it knows all")
	}
	sender.OnServiceSynced()
	sender.permit(&policy.State{})
	state := sender.state()
	if state == nil {
		t.Fatal("it sends nothing")
	}
	found := state.Services[netip.MustParseAddrPort(servicePort)]
	slices.SortFunc(found.Endpoints, netip.AddrPort.Compare)
	return found
}

func endpoint(address string, ready, terminating bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, NodeName: ptr.To("n2"),
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready && !terminating), Serving: ptr.To(ready), Terminating: ptr.To(terminating)},
	}
}

func TestExternalAddressesOfServicesAreSent(t *testing.T) {
	sender := newServiceSender("n1", nil)
	sender.OnServiceAdd(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"},
		Spec: v1.ServiceSpec{
			ClusterIP: "100.66.0.7", ClusterIPs: []string{"100.66.0.7"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			InternalTrafficPolicy: ptr.To(v1.ServiceInternalTrafficPolicyCluster), Type: v1.ServiceTypeLoadBalancer,
			ExternalIPs: []string{"203.0.113.5"}, Ports: []v1.ServicePort{{Name: "p", Port: 80, Protocol: v1.ProtocolTCP}},
		},
		Status: v1.ServiceStatus{LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: "203.0.113.6", IPMode: ptr.To(v1.LoadBalancerIPModeVIP)}}}},
	})
	sender.OnServiceSynced()
	sender.permit(&policy.State{})
	want := []netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.6")}
	if got := sender.state().External; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// TestServicesFollowKubeProxy has one endpoint of each kind.
func TestServicesFollowKubeProxy(t *testing.T) {
	ready, unready, ending := endpoint("100.64.2.1", true, false), endpoint("100.64.2.2", false, false), endpoint("100.64.2.3", true, true)
	here := endpoint("100.64.1.1", true, false)
	here.NodeName = ptr.To("n1")
	at := func(addresses ...string) (s servicemap.Service) {
		for _, address := range addresses {
			s.Endpoints = append(s.Endpoints, netip.MustParseAddrPort(address+":8080"))
		}
		return s
	}
	local := v1.ServiceSpec{InternalTrafficPolicy: ptr.To(v1.ServiceInternalTrafficPolicyLocal)}
	sticky := at("100.64.2.1")
	sticky.Sticky = time.Minute
	for name, c := range map[string]struct {
		service   v1.ServiceSpec
		endpoints []discoveryv1.Endpoint
		want      servicemap.Service
	}{
		"those that are ready":         {v1.ServiceSpec{}, []discoveryv1.Endpoint{ready, unready, ending}, at("100.64.2.1")},
		"those that end, without any":  {v1.ServiceSpec{}, []discoveryv1.Endpoint{unready, ending}, at("100.64.2.3")},
		"also of this node":            {v1.ServiceSpec{}, []discoveryv1.Endpoint{ready, here}, at("100.64.1.1", "100.64.2.1")},
		"nobody":                       {v1.ServiceSpec{}, []discoveryv1.Endpoint{unready}, servicemap.Service{}},
		"with affinity":                {v1.ServiceSpec{SessionAffinity: v1.ServiceAffinityClientIP}, []discoveryv1.Endpoint{ready}, sticky},
		"of this node alone":           {local, []discoveryv1.Endpoint{ready, here}, at("100.64.1.1")},
		"of this node, where none are": {local, []discoveryv1.Endpoint{ready}, servicemap.Service{}},
	} {
		if got := sentService(t, &v1.Service{Spec: c.service}, c.endpoints...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	gone := newServiceSender("n1", nil)
	gone.OnServiceSynced()
	gone.permit(&policy.State{})
	if state := gone.state(); state == nil || len(state.Services) != 0 {
		t.Errorf("without Services it sends %v", state)
	}
}

// TestDualStackServiceIsSentOncePerFamily has the same name for both.
func TestDualStackServiceIsSentOncePerFamily(t *testing.T) {
	const other = "fd66::7"
	sender := newServiceSender("n1", nil)
	sender.OnServiceAdd(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"},
		Spec: v1.ServiceSpec{
			ClusterIP: "100.66.0.7", ClusterIPs: []string{"100.66.0.7", other},
			IPFamilies:            []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
			InternalTrafficPolicy: ptr.To(v1.ServiceInternalTrafficPolicyCluster),
			Ports:                 []v1.ServicePort{{Name: "p", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	})
	for kind, address := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "100.64.2.1", discoveryv1.AddressTypeIPv6: "fd64::2:1"} {
		sender.OnEndpointSliceAdd(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "s-" + string(kind), Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
			AddressType: kind, Endpoints: []discoveryv1.Endpoint{endpoint(address, true, false)},
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("p"), Port: ptr.To[int32](8080), Protocol: ptr.To(v1.ProtocolTCP)}},
		})
	}
	sender.OnServiceSynced()
	sender.permit(&policy.State{})
	want := map[netip.AddrPort]servicemap.Service{
		netip.MustParseAddrPort(servicePort):          {Endpoints: []netip.AddrPort{netip.MustParseAddrPort("100.64.2.1:8080")}},
		netip.MustParseAddrPort("[" + other + "]:80"): {Endpoints: []netip.AddrPort{netip.MustParseAddrPort("[fd64::2:1]:8080")}},
	}
	if state := sender.state(); state == nil || !reflect.DeepEqual(state.Services, want) {
		t.Errorf("it sends %v, want %v", state, want)
	}
}
