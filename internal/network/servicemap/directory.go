package servicemap

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/network/policy"
)

// Service is what is behind an address and TCP port of a Service.
type Service struct {
	// Endpoints may each take any of its connections.
	Endpoints []netip.AddrPort
	// Sticky is the time of its session affinity; 0 where it has none.
	Sticky time.Duration `json:",omitempty"`
}

// State is what is known of a cluster. It is not changed once made.
type State struct {
	// Services that are not listed are not led anywhere.
	Services map[netip.AddrPort]Service
	// External are addresses that Services have beside those of the cluster.
	External []netip.Addr `json:",omitempty"`
	// Policy is what the network policies come to.
	Policy *policy.State
}

// Directory answers from the latest State. Without one it is certain of
// nothing. Its methods wait for nothing.
type Directory struct {
	policy.Latest
	// pods are the addresses of all pods of the cluster.
	pods     []netip.Prefix
	services atomic.Pointer[map[netip.AddrPort]Service]
	external atomic.Pointer[[]netip.Addr]
}

// New returns a Directory of a cluster whose pods have these addresses.
func New(pods []netip.Prefix) *Directory { return &Directory{pods: pods} }

// Set replaces the State. A Service that has anything but pods behind it is left
// out: to choose again for those of its connections that lead elsewhere would
// give its pods too many.
func (d *Directory) Set(s *State) {
	services := make(map[netip.AddrPort]Service, len(s.Services))
	for address, service := range s.Services {
		if !slices.ContainsFunc(service.Endpoints, func(e netip.AddrPort) bool { return !d.isPod(e.Addr()) }) {
			services[address] = service
		}
	}
	d.external.Store(&s.External)
	d.services.Store(&services)
	d.Latest.Set(s.Policy)
}

// Resolve returns the pods behind an address that a pod connects to. They are
// none where it is a pod's own, and ok is false where it is not certain.
func (d *Directory) Resolve(to netip.AddrPort) (service Service, ok bool) {
	if d.isPod(to.Addr()) {
		return Service{}, true
	}
	services := d.services.Load()
	if services == nil {
		return Service{}, false
	}
	service = (*services)[to]
	return service, len(service.Endpoints) > 0
}

// Claims tells whether an address that is none of the cluster's may be a
// Service's all the same.
func (d *Directory) Claims(a netip.Addr) bool {
	external := d.external.Load()
	return external == nil || slices.Contains(*external, a)
}

func (d *Directory) isPod(a netip.Addr) bool {
	return slices.ContainsFunc(d.pods, func(p netip.Prefix) bool { return p.Contains(a) })
}
