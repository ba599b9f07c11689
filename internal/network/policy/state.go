package policy

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// State is what the policies of a cluster come to. It is not changed once made,
// and encodes as JSON. The zero State is that of a cluster without policies.
type State struct {
	// Pending: there are policies, but not all is known yet that they speak
	// of. Nothing is certain then.
	Pending bool `json:",omitempty"`
	// Pods are those that have addresses of their own, by address; none where
	// there are no policies.
	Pods map[netip.Addr]Pod
	// Peers are sets of addresses, to which rules refer by index.
	Peers []Ranges `json:",omitempty"`
}

// Pod is what policies say about an address.
type Pod struct {
	UID  types.UID
	Node string
	// Ingress and Egress are nil where the pod is not isolated: everything is
	// permitted then.
	Ingress, Egress *Isolation `json:",omitempty"`
}

// Isolation permits what one of its rules does.
type Isolation struct {
	Rules []Rule `json:",omitempty"`
}

// Rule permits connections with some peers over some ports.
type Rule struct {
	// Peers is an index into State.Peers, or Anybody.
	Peers int
	// Ports are those of the one who is connected to. Without any, everything
	// is meant, also protocols that have no ports.
	Ports []Ports `json:",omitempty"`
}

// Anybody stands for all addresses.
const Anybody = -1

// None tells whether there is certainly no policy.
func (s *State) None() bool { return !s.Pending && s.Pods == nil }

// Permits tells whether somebody may connect to a port. The address is that
// behind a Service. Pods always reach themselves; so do a node and its pods,
// which the caller knows.
func (s *State) Permits(protocol Protocol, from netip.Addr, to netip.AddrPort) bool {
	if s.Pending {
		return false
	}
	if from == to.Addr() {
		return true
	}
	return s.allows(s.Pods[from].Egress, to.Addr(), protocol, to.Port()) &&
		s.allows(s.Pods[to.Addr()].Ingress, from, protocol, to.Port())
}

func (s *State) allows(isolation *Isolation, peer netip.Addr, protocol Protocol, port uint16) bool {
	if isolation == nil {
		return true
	}
	for _, rule := range isolation.Rules {
		if rule.Peers != Anybody && !s.Peers[rule.Peers].Contain(peer) {
			continue
		}
		if len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p Ports) bool { return p.contain(protocol, port) }) {
			return true
		}
	}
	return false
}

// Latest is the State of now, for those who are asked in the middle of a
// connect. The zero Latest knows nothing and permits nothing.
type Latest struct {
	state atomic.Pointer[State]
}

// Set replaces the State.
func (l *Latest) Set(s *State) { l.state.Store(s) }

// Permits tells whether a TCP connection between two pods is permitted for
// certain: where there are policies, both must be known.
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
	return fromKnown && toKnown && s.Permits(TCP, from, to)
}

// PermitsOutside is Permits for an address that is no pod's.
func (l *Latest) PermitsOutside(from netip.Addr, to netip.AddrPort) bool {
	s := l.state.Load()
	if s == nil {
		return false
	}
	if s.None() {
		return true
	}
	_, known := s.Pods[from]
	return known && s.Permits(TCP, from, to)
}
