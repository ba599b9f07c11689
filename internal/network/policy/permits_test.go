package policy

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

// attempt is a connection and whether it is permitted.
type attempt struct {
	from, to string
	protocol Protocol
	port     uint16
	yes      bool
}

func may(from, to string, protocol Protocol, port uint16) attempt {
	return attempt{from, to, protocol, port, true}
}

func mayNot(from, to string, protocol Protocol, port uint16) attempt {
	return attempt{from, to, protocol, port, false}
}

const denyAll = `{spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`

// promise is a sentence of the API's documentation (k8s.io/api/networking/v1,
// types.go, or the page about network policies), and what follows from it.
type promise struct {
	name, policies string
	attempts       []attempt
}

func promises() []promise {
	return []promise{
		{"without policies everything is permitted", ``, []attempt{
			may(xa, wa, TCP, 80), may(outside, xa, UDP, 53), may(xa, outside, SCTP, 1),
		}},
		{"an empty podSelector matches all pods of the namespace, and of no other", `{spec: {podSelector: {}}}`, []attempt{
			mayNot(wa, xa, TCP, 80), mayNot(xa, xb, TCP, 80), mayNot(outside, xb, UDP, 80), may(xa, wa, TCP, 80), may(za, wa, TCP, 80),
		}},
		{"pods without a matching podSelector are not isolated", `{spec: {podSelector: {matchLabels: {pod: a}}}}`, []attempt{
			mayNot(wa, xa, TCP, 80), may(wa, xb, TCP, 80),
		}},
		{"an empty ingress permits nothing, an empty rule everything", `{spec: {podSelector: {}, ingress: [{}]}}`, []attempt{
			may(wa, xa, TCP, 80), may(outside, xa, SCTP, 9),
		}},
		{"an empty egress permits nothing", `{spec: {podSelector: {}, policyTypes: [Egress]}}`, []attempt{
			mayNot(xa, wa, TCP, 80), mayNot(xa, outside, TCP, 80), mayNot(xa, dns, UDP, 53), may(wa, xa, TCP, 80),
		}},
		{"without policyTypes, a policy with egress isolates both ways", `{spec: {podSelector: {}, egress: [{}]}}`, []attempt{
			may(xa, wa, TCP, 80), mayNot(wa, xa, TCP, 80),
		}},
		{"both sides must permit a connection", `{spec: {podSelector: {}, policyTypes: [Egress], egress: [{}]}}` + "\n---\n" +
			`{metadata: {namespace: w}, spec: {podSelector: {matchLabels: {pod: a}}}}`, []attempt{
			mayNot(xa, wa, TCP, 80), may(xa, wb, TCP, 80),
		}},
		{"policies add up", `{metadata: {name: a}, spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}` + "\n---\n" +
			`{metadata: {name: b}, spec: {podSelector: {}, ingress: [{ports: [{port: 443}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), may(wa, xa, TCP, 443), mayNot(wa, xa, TCP, 81),
		}},
		{"a podSelector alone selects pods of the policy's own namespace", `{spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}}`, []attempt{
			may(xb, xa, TCP, 80), mayNot(wb, xa, TCP, 80), mayNot(wa, xa, TCP, 80),
		}},
		{"a namespaceSelector alone selects all pods of the namespaces", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: w}}}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), may(wb, xa, TCP, 80), mayNot(za, xa, TCP, 80), mayNot(xb, xa, TCP, 80),
		}},
		{"an empty namespaceSelector selects all namespaces, but nobody outside", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}}`, []attempt{
			may(za, xa, TCP, 80), may(xb, xa, TCP, 80), mayNot(outside, xa, TCP, 80), mayNot(hosted, xa, TCP, 80), mayNot(finished, xa, TCP, 80),
		}},
		{"both selectors in one peer mean both", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: a}}}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), mayNot(wb, xa, TCP, 80), mayNot(za, xa, TCP, 80),
		}},
		{"two peers mean either", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: w}}}, {podSelector: {matchLabels: {pod: b}}}]}]}}`, []attempt{
			may(wb, xa, TCP, 80), may(xb, xa, TCP, 80), mayNot(za, xa, TCP, 80),
		}},
		{"expressions of selectors", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [z]}]}, podSelector: {matchExpressions: [{key: pod, operator: Exists}]}}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), may(xb, xa, TCP, 80), mayNot(za, xa, TCP, 80),
		}},
		{"an ipBlock without what it excepts", `{spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/16, except: [10.0.1.0/31, 10.0.2.0/24]}}]}]}}`, []attempt{
			may(xa, wb, TCP, 80), mayNot(xa, wa, TCP, 80), mayNot(xa, za, TCP, 80), mayNot(xa, outside, TCP, 80), may(xa, xb, TCP, 80),
		}},
		{"an ipBlock of IPv6", `{metadata: {namespace: z}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: "fd00::/16", except: ["fd00::1:2/128"]}}]}]}}`, []attempt{
			may(zaIPv6, waIPv6, TCP, 80), mayNot(zaIPv6, "fd00::1:2", TCP, 80), mayNot(za, wa, TCP, 80), mayNot(zaIPv6, "2001:db8::5", TCP, 80),
		}},
		{"everything of one family leaves the other out", `{metadata: {namespace: z}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}}`, []attempt{
			may(za, outside, TCP, 80), mayNot(zaIPv6, waIPv6, TCP, 80),
		}},
		{"excepted by one peer, permitted by another", `{spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/16, except: [10.0.1.0/24]}}, {ipBlock: {cidr: 10.0.1.1/32}}]}]}}`, []attempt{
			may(xa, wa, TCP, 80), mayNot(xa, wb, TCP, 80),
		}},
		{"a selected pod has all its addresses", `{metadata: {namespace: z}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: w}}}]}]}}`, []attempt{
			may(waIPv6, zaIPv6, TCP, 80), may(wa, za, TCP, 80), mayNot("fd00::9", zaIPv6, TCP, 80),
		}},
		{"ports are TCP unless said otherwise, and of the server", `{spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), mayNot(wa, xa, UDP, 80), mayNot(wa, xa, SCTP, 80), mayNot(wa, xa, TCP, 8080),
		}},
		{"a protocol without port means all of its ports", `{spec: {podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}}`, []attempt{
			may(wa, xa, UDP, 1), may(wa, xa, UDP, 65535), mayNot(wa, xa, TCP, 80),
		}},
		{"SCTP", `{spec: {podSelector: {}, ingress: [{ports: [{protocol: SCTP, port: 80}]}]}}`, []attempt{
			may(wa, xa, SCTP, 80), mayNot(wa, xa, TCP, 80), mayNot(wa, xa, SCTP, 81),
		}},
		{"endPort is included", `{spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 8000, endPort: 8010}]}]}}`, []attempt{
			may(xa, wa, TCP, 8000), may(xa, wa, TCP, 8010), mayNot(xa, wa, TCP, 8011), mayNot(xa, wa, TCP, 7999), mayNot(xa, wa, UDP, 8000),
		}},
		{"a port's name is the selected pod's on ingress", `{spec: {podSelector: {}, ingress: [{ports: [{port: http}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), may(wa, xb, TCP, 8080), mayNot(wa, xa, TCP, 8080), mayNot(wa, xb, TCP, 80), mayNot(wa, xa, UDP, 80),
		}},
		{"and the peer's on egress", `{metadata: {namespace: w}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: http}, {port: sync, protocol: UDP}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), may(wa, xb, TCP, 8080), mayNot(wa, xb, TCP, 80), may(wa, xa, UDP, 80), mayNot(wa, outside, TCP, 80), mayNot(wa, za, TCP, 80),
		}},
		{"also of a peer that an ipBlock means", `{metadata: {namespace: w}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.2/32}}], ports: [{port: http}]}]}}`, []attempt{
			may(wa, xb, TCP, 8080), mayNot(wa, xa, TCP, 80),
		}},
		{"a name that the pod does not have permits nothing", `{spec: {podSelector: {}, ingress: [{ports: [{port: nameless}]}]}}`, []attempt{
			mayNot(wa, xa, TCP, 80), mayNot(wa, xa, TCP, 0),
		}},
		{"peers and ports of one rule mean both", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: w}}}], ports: [{port: 80}]}]}}`, []attempt{
			may(wa, xa, TCP, 80), mayNot(wa, xa, TCP, 81), mayNot(za, xa, TCP, 80),
		}},
		{"a pod reaches itself", denyAll, []attempt{may(xa, xa, TCP, 80), mayNot(xa, xb, TCP, 80)}},
		{"pods in their node's network are not isolated, nor meant by selectors",
			`{spec: {podSelector: {matchLabels: {pod: hosted}}}}` + "\n---\n" + `{spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {}}]}]}}`,
			[]attempt{may(wa, hosted, TCP, 80), mayNot(hosted, xa, TCP, 80), may(xb, xa, TCP, 80)}},
		{"what stands in for a pod is meant by its labels, with its own ports", `{spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: system}}, podSelector: {matchLabels: {k8s-app: dns}}}]}]}}`, []attempt{
			may(xa, dns, UDP, 53), may(xa, dns, TCP, 53), mayNot(xa, dns, TCP, 6443), mayNot(xa, wa, UDP, 53),
		}},
		{"and with those of a rule", `{spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}], ports: [{protocol: UDP, port: 53}, {port: 6443}]}]}}`, []attempt{
			may(xa, dns, UDP, 53), mayNot(xa, dns, TCP, 53), mayNot(xa, dns, TCP, 6443), may(xa, wa, TCP, 6443),
		}},
	}
}

func TestPolicyFollowsAPI(t *testing.T) {
	for _, p := range promises() {
		t.Run(p.name, func(t *testing.T) {
			state := compile(testCluster(t, p.policies))
			for _, a := range p.attempts {
				to := netip.AddrPortFrom(netip.MustParseAddr(a.to), a.port)
				if got := state.permits(a.protocol, netip.MustParseAddr(a.from), to); got != a.yes {
					t.Errorf("%s to %s, protocol %d: %t", a.from, to, a.protocol, got)
				}
			}
		})
	}
}

func TestStateIsOrderIndependentAndRoundTrips(t *testing.T) {
	for _, p := range promises() {
		o := testCluster(t, p.policies)
		state := compile(o)
		slices.Reverse(o.Pods)
		slices.Reverse(o.Policies)
		slices.Reverse(o.Namespaces)
		if again := compile(o); !reflect.DeepEqual(state, again) {
			t.Errorf("%s: another state from the same objects: %+v, %+v", p.name, state, again)
		}
		text, err := json.Marshal(state)
		var back State
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || !reflect.DeepEqual(state, &back) {
			t.Errorf("%s: %+v came back from JSON as %+v (%v)", p.name, state, back, err)
		}
	}
}

func TestLatestPermitsOnlyCertain(t *testing.T) {
	address := netip.MustParseAddr
	pod, other, unknown := address(xa), netip.MustParseAddrPort(wa+":80"), netip.MustParseAddrPort(outside+":80")
	var l Latest
	if l.Permits(pod, other) {
		t.Error("permits before it knows")
	}
	l.Set(&State{})
	if !l.Permits(pod, other) || !l.Permits(pod, unknown) {
		t.Error("does not permit everything where there are no policies")
	}
	l.Set(compile(testCluster(t, `{spec: {podSelector: {matchLabels: {pod: b}}}}`)))
	if !l.Permits(pod, other) {
		t.Error("does not permit a connection between two pods that no policy selects")
	}
	if l.Permits(pod, unknown) || l.Permits(unknown.Addr(), other) {
		t.Error("permits a connection with an unknown pod where there are policies")
	}
	if !l.PermitsOutside(pod, unknown) || l.PermitsOutside(unknown.Addr(), unknown) {
		t.Error("permits the outside to others than pods that no policy selects")
	}
	l.Set(compile(testCluster(t, `{spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 80}]}]}}`)))
	if !l.PermitsOutside(pod, unknown) || l.PermitsOutside(pod, netip.AddrPortFrom(unknown.Addr(), 81)) || l.PermitsOutside(pod, netip.MustParseAddrPort("198.51.100.1:80")) {
		t.Error("does not permit what a block of addresses does, and nothing else")
	}
	l.Set(&State{Pending: true})
	if l.Permits(pod, other) || l.Permits(pod, netip.AddrPortFrom(pod, 80)) || l.PermitsOutside(pod, unknown) {
		t.Error("permits while not all is known")
	}
}
