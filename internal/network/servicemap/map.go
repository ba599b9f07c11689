package servicemap

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/network/policy"
)

// Service holds the pods behind one address and TCP port of a Service.
type Service struct {
	// Endpoints are equally good targets for any of its connections.
	Endpoints []netip.AddrPort
	// Sticky is the timeout of its session affinity, or 0 without affinity.
	Sticky time.Duration `json:",omitempty"`
}

// State describes the Services and policies of a cluster. It is immutable.
type State struct {
	// Services lists the Services whose connections may be switched.
	Services map[netip.AddrPort]Service
	// External lists addresses of Services that are not the cluster's own.
	External []netip.Addr `json:",omitempty"`
	// Policy holds the compiled network policies.
	Policy *policy.State
}

// Map answers from the latest State. Before the first State it resolves only pods
// and permits nothing. Its methods never block.
type Map struct {
	policy.Latest
	// pods contains the addresses of all pods of the cluster.
	pods     []netip.Prefix
	services atomic.Pointer[map[netip.AddrPort]Service]
	external atomic.Pointer[[]netip.Addr]
}

// New returns a Map of a cluster whose pods have addresses in pods.
func New(pods []netip.Prefix) *Map { return &Map{pods: pods} }

// Set replaces the State. It omits a Service if some endpoints are not pods. Connections
// to these endpoints would be left to kube-proxy, which would choose among all endpoints
// again. So the pods would receive more than their share.
func (m *Map) Set(s *State) {
	services := make(map[netip.AddrPort]Service, len(s.Services))
	for address, service := range s.Services {
		if !slices.ContainsFunc(service.Endpoints, func(e netip.AddrPort) bool { return !m.isPod(e.Addr()) }) {
			services[address] = service
		}
	}
	m.external.Store(&s.External)
	m.services.Store(&services)
	m.Latest.Set(s.Policy)
}

// Resolve returns the pods behind an address that a pod connects to. It returns no
// endpoints for an address of a pod, and false for an address that it does not know.
func (m *Map) Resolve(to netip.AddrPort) (service Service, ok bool) {
	if m.isPod(to.Addr()) {
		return Service{}, true
	}
	services := m.services.Load()
	if services == nil {
		return Service{}, false
	}
	service = (*services)[to]
	return service, len(service.Endpoints) > 0
}

// Claims reports whether an address outside the cluster's ranges may belong to a
// Service. Before the first State it returns true.
func (m *Map) Claims(a netip.Addr) bool {
	external := m.external.Load()
	return external == nil || slices.Contains(*external, a)
}

func (m *Map) isPod(a netip.Addr) bool {
	return slices.ContainsFunc(m.pods, func(p netip.Prefix) bool { return p.Contains(a) })
}
