package fastpath

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// pod holds the addresses, the network namespace and the bells of a pod.
type pod struct {
	address     netip.Addr // the IPv4 address, which identifies the pod
	addressIPv6 netip.Addr // invalid if the pod has none

	// network is the cookie of the pod's network namespace, or 0 until findNamespace has
	// found it.
	network atomic.Uint64
	// defaults holds the options of a new socket in the namespace.
	defaults atomic.Pointer[sock.Settings]

	containers []*container // under the lock of pods

	mu sync.Mutex
	// free holds unconnected IPv4 bells. The first one is never used as a bell, because
	// the namespace is found by it. freeIPv6 holds IPv6 bells.
	free, freeIPv6 []int
	// diag lists the sockets of the namespace. It is nil before the first use.
	diag *linux.SocketDiag

	// ipv4Ports holds the ports of the pod's IPv4 listeners.
	ipv4Ports map[uint16]bool

	// ringing is held until the port of a bell is known.
	ringing sync.Mutex
	parked  atomic.Int32
	foreign atomic.Bool   // a 32-bit program was logged
	port    atomic.Uint32 // the counter of nextPort
}

// container is a filter with its listener.
type container struct {
	pod    *pod
	record *record
	fd     int
	token  uint64
}

// The default of net.ipv4.ip_local_port_range.
const (
	firstPort = 32768
	numPorts  = 28232
)

// addressFor returns the pod's address of the family of another address.
func (p *pod) addressFor(other netip.Addr) netip.Addr {
	if other.Is4() {
		return p.address
	}
	return p.addressIPv6
}

func (p *pod) has(address netip.Addr) bool { return address == p.addressFor(address) }

// nextPort returns the local port that a program sees if it connects an unbound socket.
func (p *pod) nextPort() uint16 { return uint16(firstPort + p.port.Add(1)%numPorts) }

// noteListener records the family of a new listener.
func (p *pod) noteListener(listener int) {
	local, ok := sock.Local(listener)
	domain := sock.Domain(listener)
	if !ok || domain == unix.AF_INET6 && sock.Option(listener, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) == 1 {
		return // IPv4 connections do not reach this listener
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if domain == unix.AF_INET {
		p.ipv4Ports[local.Port()] = true
	} else {
		delete(p.ipv4Ports, local.Port())
	}
}

// acceptsIPv4 reports whether a port is known to have an IPv4 listener.
func (p *pod) acceptsIPv4(port uint16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ipv4Ports[port]
}

func (p *pod) setNamespace(network uint64, socket int) {
	defaults := sock.SettingsOf(socket)
	p.defaults.Store(&defaults)
	p.network.Store(network)
}

// close closes the sockets in the pod's namespace.
func (p *pod) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	sock.CloseAll(append(p.free, p.freeIPv6...)...)
	p.free, p.freeIPv6 = nil, nil
	if p.diag != nil {
		p.diag.Close()
		p.diag = nil
	}
}

// pods holds the pods of the node that have containers, by each of their addresses.
type pods struct {
	mu        sync.Mutex
	byAddress map[netip.Addr]*pod
}

// at returns the pod with an address, or nil.
func (ps *pods) at(address netip.Addr) *pod {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.byAddress[address]
}

// ofSocket returns the pod that owns the namespace of a socket, or nil.
func (ps *pods) ofSocket(socket int) *pod {
	network, err := sock.NetworkCookie(socket)
	if err != nil {
		return nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byAddress {
		if p.network.Load() == network {
			return p
		}
	}
	return nil
}

// answersFor reports whether a filter belongs to a known container of a pod.
func (ps *pods) answersFor(listener int, address netip.Addr) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byAddress[address]
	return p != nil && slices.ContainsFunc(p.containers, func(c *container) bool {
		return linux.SameFile(os.Getpid(), listener, os.Getpid(), c.fd)
	})
}

// add adds the container of a record to its pod.
func (ps *pods) add(r *record) *container {
	c := &container{record: r, fd: int(r.fd)}
	address := r.local.addrPort().Addr()
	ps.mu.Lock()
	p := ps.byAddress[address]
	if p == nil {
		p = &pod{address: address, ipv4Ports: map[uint16]bool{}}
		ps.byAddress[address] = p
		if ipv6 := r.peer.addrPort().Addr(); !ipv6.IsUnspecified() {
			p.addressIPv6 = ipv6
			ps.byAddress[ipv6] = p
		}
	}
	p.containers = append(p.containers, c)
	ps.mu.Unlock()
	c.pod = p
	p.mu.Lock()
	defer p.mu.Unlock()
	network, err := sock.NetworkCookie(int(r.bell))
	switch {
	case p.network.Load() != 0:
		sock.CloseAll(int(r.bell))
		r.bell = int32(p.free[0])
	case r.bell > 0 && err == nil:
		p.free = append(p.free, int(r.bell))
		p.setNamespace(network, int(r.bell))
	}
	return c
}

// remove removes a container, and with the last container of a pod the pod. It reports
// whether it removed the pod.
func (ps *pods) remove(c *container) (last bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	c.pod.containers = slices.DeleteFunc(c.pod.containers, func(other *container) bool { return other == c })
	last = len(c.pod.containers) == 0
	if last {
		maps.DeleteFunc(ps.byAddress, func(_ netip.Addr, p *pod) bool { return p == c.pod })
	}
	return last
}

// noteSocket records a socket of the pod's namespace for a successor.
func (ps *pods) noteSocket(p *pod, socket int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, c := range p.containers {
		c.record.bell = int32(socket)
	}
}
