package policy

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The tests' cluster: pods by name, in the namespaces w, x and z, whose label
// is ns=NAME. A pod's label is pod=NAME.
const (
	xa       = "10.0.0.1" // ports: http 80, https 443, sync 80/UDP
	xb       = "10.0.0.2" // ports: http 8080
	wa       = "10.0.1.1"
	wb       = "10.0.1.2"
	za       = "10.0.2.1"
	zaIPv6   = "fd00::2:1"
	waIPv6   = "fd00::1:1"
	dns      = "10.0.255.53"
	hosted   = "192.168.0.1" // a pod in its node's network
	finished = "10.0.0.9"
	outside  = "203.0.113.5"
)

func podOf(namespace, name string, addresses ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"pod": name}},
		Spec:       corev1.PodSpec{NodeName: "node-" + namespace, Containers: []corev1.Container{{}}},
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

func withPorts(p *corev1.Pod, ports ...corev1.ContainerPort) *corev1.Pod {
	p.Spec.Containers[0].Ports = ports
	return p
}

// testCluster returns the tests' cluster with the policies of a YAML stream.
func testCluster(t *testing.T, policies string) objects {
	t.Helper()
	onNode, ended := podOf("x", "hosted", hosted), podOf("x", "a", finished)
	onNode.Spec.HostNetwork = true
	ended.Status.Phase = corev1.PodSucceeded
	o := objects{
		Pods: []*corev1.Pod{
			withPorts(podOf("x", "a", xa),
				corev1.ContainerPort{Name: "http", ContainerPort: 80, Protocol: corev1.ProtocolTCP},
				corev1.ContainerPort{Name: "https", ContainerPort: 443},
				corev1.ContainerPort{Name: "sync", ContainerPort: 80, Protocol: corev1.ProtocolUDP}),
			withPorts(podOf("x", "b", xb), corev1.ContainerPort{Name: "http", ContainerPort: 8080}),
			podOf("w", "a", wa, waIPv6), podOf("w", "b", wb), podOf("z", "a", za, zaIPv6),
			onNode, ended,
		},
		VirtualPods: []VirtualPod{{
			Namespace: "system", Labels: map[string]string{"k8s-app": "dns"},
			Addresses: []netip.Addr{netip.MustParseAddr(dns)},
			Ports:     []Ports{{TCP, 53, 53}, {UDP, 53, 53}},
		}},
	}
	for _, name := range []string{"x", "w", "z", "system"} {
		o.Namespaces = append(o.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"ns": name}}})
	}
	for text := range strings.SplitSeq(policies, "\n---\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		o.Policies = append(o.Policies, policyOf(t, text))
	}
	return o
}

// policyOf parses a policy. Its namespace is x by default.
func policyOf(t testing.TB, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x"}}
	if err := yaml.UnmarshalStrict([]byte(text), policy); err != nil {
		t.Fatalf("read a policy: %v\n%s", err, text)
	}
	return policy
}
