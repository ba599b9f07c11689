package policy

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// State holds the compiled policies of a cluster. It is immutable, and encodes as
// JSON. The zero State belongs to a cluster without policies.
type State struct {
	// Pending is set while there are policies whose pods or namespaces are not
	// known yet. Nothing is permitted then.
	Pending bool `json:",omitempty"`
	// Pods holds the pods that have their own addresses, by address. It is nil
	// without policies.
	Pods map[netip.Addr]Pod
	// Peers holds sets of addresses. Rules refer to them by index.
	Peers []Ranges `json:",omitempty"`
}

// Pod holds the rules for one address.
type Pod struct {
	UID  types.UID
	Node string
	// Ingress or Egress is nil if the pod is not isolated in this direction, so that
	// everything is permitted.
	Ingress, Egress *Isolation `json:",omitempty"`
}

// Isolation permits a connection that one of its rules permits.
type Isolation struct {
	Rules []Rule `json:",omitempty"`
}

// Rule permits connections with some peers over some ports.
type Rule struct {
	// Peers is an index into State.Peers, or anybody.
	Peers int
	// Ports are ports of the side that accepts. An empty list permits everything,
	// including protocols without ports.
	Ports []Ports `json:",omitempty"`
}

// anybody stands for all addresses.
const anybody = -1

// None reports whether there is certainly no policy.
func (s *State) None() bool { return !s.Pending && s.Pods == nil }

// permits reports whether from may connect to an endpoint, which must not be a Service's
// address. Pods always reach themselves. A pod and its own node always reach each other,
// but the caller has to check that.
func (s *State) permits(protocol Protocol, from netip.Addr, to netip.AddrPort) bool {
	if s.Pending {
		return false
	}
	if from == to.Addr() {
		return true
	}
	return s.allows(s.Pods[from].Egress, to.Addr(), protocol, to.Port()) &&
		s.allows(s.Pods[to.Addr()].Ingress, from, protocol, to.Port())
}

// allows reports whether an isolation permits a connection to or from peer. A nil isolation
// permits everything.
func (s *State) allows(isolation *Isolation, peer netip.Addr, protocol Protocol, port uint16) bool {
	if isolation == nil {
		return true
	}
	for _, rule := range isolation.Rules {
		if rule.Peers != anybody && !s.Peers[rule.Peers].contain(peer) {
			continue
		}
		if len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p Ports) bool { return p.contain(protocol, port) }) {
			return true
		}
	}
	return false
}

// Latest holds the current State, and answers without blocking. The zero Latest
// permits nothing.
type Latest struct {
	state atomic.Pointer[State]
}

// Set replaces the State.
func (l *Latest) Set(s *State) { l.state.Store(s) }

// Permits reports whether a TCP connection between two pods is certainly permitted.
// Where there are policies, both pods must be known.
func (l *Latest) Permits(from netip.Addr, to netip.AddrPort) bool {
	s := l.state.Load()
	if s == nil {
		return false
	}
	if s.None() {
		return true
	}
	_, fromKnown := s.Pods[from]
	_, toKnown := s.Pods[to.Addr()]
	return fromKnown && toKnown && s.permits(TCP, from, to)
}

// PermitsOutside works like Permits, for an address outside the cluster.
func (l *Latest) PermitsOutside(from netip.Addr, to netip.AddrPort) bool {
	s := l.state.Load()
	if s == nil {
		return false
	}
	if s.None() {
		return true
	}
	_, known := s.Pods[from]
	return known && s.permits(TCP, from, to)
}
