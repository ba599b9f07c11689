package fastpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// pod holds the addresses, the network namespace and the bells of a pod.
type pod struct {
	address     netip.Addr // of IPv4, also the pod's name
	addressIPv6 netip.Addr // invalid where it has none

	// network is the cookie of its namespace, or 0 before the first call of the pod.
	network atomic.Uint64
	// defaults holds the options of a new socket in its namespace.
	defaults atomic.Pointer[sock.Settings]

	mu         sync.Mutex
	containers []*container // under the Switch's lock
	// free holds unconnected IPv4 bells. The first one stays there, to find the
	// namespace. freeIPv6 holds IPv6 bells.
	free, freeIPv6 []int
	// diag lists the sockets of its namespace. It is nil before the first use.
	diag *linux.SocketDiag

	// ipv4Ports holds the ports of the pod's IPv4 listeners.
	ipv4Ports map[uint16]bool

	// ringing is held until the port of a bell is known.
	ringing sync.Mutex
	parked  atomic.Int32
	foreign atomic.Bool // a 32-bit program was logged
	port    atomic.Uint32
}

// container is a filter with its listener.
type container struct {
	s      *Switch
	pod    *pod
	record *record
	fd     int
	token  uint64
}

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

// nextPort returns a local port for the program of a connection that was not bound.
func (p *pod) nextPort() uint16 { return uint16(firstPort + p.port.Add(1)%numPorts) }

// containersSource accepts deliveries of the runtime.
type containersSource struct {
	s     *Switch
	fd    int
	token uint64
}

func (c *containersSource) ready(uint32) { c.s.acceptAll(c.fd, c.token, c.s.expectDelivery) }

func (s *Switch) expectDelivery(conn int) {
	d := &delivery{s: s, fd: conn}
	if err := s.reactor.add(conn, unix.EPOLLIN, d, &d.token); err != nil {
		unix.Close(conn)
	}
}

// delivery receives one message of a runtime: the ContainerProcessState of the OCI runtime
// specification, with a descriptor.
type delivery struct {
	s     *Switch
	fd    int
	token uint64
}

func (d *delivery) ready(uint32) {
	defer unix.Close(d.fd)
	d.s.reactor.drop(d.token)
	if err := d.s.takeDelivery(d.fd); err != nil {
		d.s.config.Log.Warn("a container's connections stay on the overlay", "err", err)
	}
}

// takeDelivery peeks at the message, which stays in the socket until there is a record: a
// filter whose last descriptor was closed answers ENOSYS forever.
func (s *Switch) takeDelivery(fd int) error {
	message, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(8*4))
	n, rightsLen, _, _, err := unix.Recvmsg(fd, message, rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_PEEK)
	if err != nil {
		return fmt.Errorf("receive a container's filter: %w", err)
	}
	fds, err := passed(rights[:rightsLen])
	if err != nil {
		return fmt.Errorf("receive a container's filter: %w", err)
	}
	var told processState
	if err := json.Unmarshal(message[:n], &told); err != nil {
		sock.CloseAll(fds...)
		return fmt.Errorf("read the state of a container: %w", err)
	}
	var about Metadata
	err = about.UnmarshalText([]byte(told.Metadata))
	if err != nil || len(fds) != 1 || len(told.Fds) != 1 || told.Fds[0] != filterName {
		sock.CloseAll(fds...)
		return fmt.Errorf("use a container's filter (%d descriptors %q, metadata %q): %w", len(fds), told.Fds, told.Metadata, unix.EBADMSG)
	}
	if s.answersFor(fds[0], about.Address) {
		sock.CloseAll(fds...) // a predecessor has taken it
		return nil
	}
	r := s.state.take(kindContainer)
	if r == nil {
		sock.CloseAll(fds...)
		return errStateFull
	}
	r.fd, r.local, r.cookie = int32(fds[0]), packEnd(netip.AddrPortFrom(about.Address, 0)), about.Network
	r.peer, r.memory = packEnd(netip.AddrPortFrom(about.AddressIPv6, 0)), about.Memory
	_, err = s.adopt(r)
	return err
}

func passed(rights []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

// answersFor reports whether a filter belongs to a known container of a pod.
func (s *Switch) answersFor(listener int, pod netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[pod]
	return p != nil && slices.ContainsFunc(p.containers, func(c *container) bool {
		return linux.SameFile(os.Getpid(), listener, os.Getpid(), c.fd)
	})
}

// adopt starts to answer the calls of a container.
func (s *Switch) adopt(r *record) (*container, error) {
	c := &container{s: s, record: r, fd: int(r.fd)}
	address := r.local.addrPort().Addr()
	s.mu.Lock()
	p := s.pods[address]
	if p == nil {
		p = &pod{address: address, ipv4Ports: map[uint16]bool{}}
		s.pods[address] = p
		if ipv6 := r.peer.addrPort().Addr(); !ipv6.IsUnspecified() {
			p.addressIPv6 = ipv6
			s.pods[ipv6] = p
		}
	}
	p.containers = append(p.containers, c)
	s.mu.Unlock()
	c.pod = p
	p.mu.Lock()
	network, err := sock.NetworkCookie(int(r.bell))
	switch {
	case p.network.Load() != 0:
		sock.CloseAll(int(r.bell))
		r.bell = int32(p.free[0])
	case r.bell > 0 && err == nil:
		p.free = append(p.free, int(r.bell))
		p.setNamespace(network, int(r.bell))
	}
	p.mu.Unlock()
	_ = linux.WakeOnSameCPU(c.fd) // only faster, and only since Linux 6.6
	if err := s.reactor.add(c.fd, unix.EPOLLIN, c, &c.token); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

func (c *container) ready(events uint32) {
	if events&unix.EPOLLHUP != 0 {
		c.release()
		return
	}
	t := &trap{s: c.s, from: c, record: c.s.state.take(kindCall), thread: -1}
	if t.record == nil {
		c.refuseOne()
		return
	}
	t.record.fd = int32(c.fd)
	err := linux.ReceiveNotification(c.fd, t.call())
	_ = c.s.reactor.again(c.fd, c.token, unix.EPOLLIN)
	if err != nil {
		t.done() // cancelled meanwhile
		return
	}
	defer t.exclude()()
	c.s.handle(t)
}

// refuseOne refuses a call when no record is free. It could be one that the kernel must not
// perform.
func (c *container) refuseOne() {
	var n linux.Notification
	if linux.ReceiveNotification(c.fd, &n) == nil {
		c.s.counters.add(countFull)
		_ = linux.AnswerNotification(c.fd, n.ID, 0, unix.ENOBUFS)
	}
	_ = c.s.reactor.again(c.fd, c.token, unix.EPOLLIN)
}

// release forgets a container whose processes have all ended.
func (c *container) release() {
	c.s.reactor.drop(c.token)
	c.s.forgetWaiting(c)
	c.s.mu.Lock()
	c.pod.containers = slices.DeleteFunc(c.pod.containers, func(other *container) bool { return other == c })
	last := len(c.pod.containers) == 0
	if last {
		maps.DeleteFunc(c.s.pods, func(_ netip.Addr, p *pod) bool { return p == c.pod })
		if len(c.s.known) > minKnown {
			c.s.forget = true
			c.s.sweepLocked()
		}
	}
	c.s.mu.Unlock()
	c.s.state.put(c.record)
	// Close it last: answersFor would mistake another filter with this number for this
	// one, and close it.
	unix.Close(c.fd)
	if !last {
		return
	}
	c.s.removeParked(func(p *parked) bool { return p.pod == c.pod }, func(p *parked) { sock.Reset(p.fd) })
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	sock.CloseAll(append(c.pod.free, c.pod.freeIPv6...)...)
	c.pod.free, c.pod.freeIPv6 = nil, nil
	if c.pod.diag != nil {
		c.pod.diag.Close()
		c.pod.diag = nil
	}
}

// findNamespace finds the pod's namespace by the first of its processes that calls.
func (p *pod) findNamespace(t *trap) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.Load() != 0 {
		return nil
	}
	namespace, err := unix.Open("/proc/"+strconv.Itoa(t.tid())+"/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace of pod %s: %w", p.address, err)
	}
	defer unix.Close(namespace)
	if !t.waits() {
		return unix.ESRCH
	}
	bells, err := t.s.inside.sockets(askSockets, namespace)
	if err != nil {
		return err
	}
	network, err := sock.NetworkCookie(bells[0])
	switch {
	case err != nil:
	case network == t.s.hostNetwork:
		err = errors.New("it is the host's")
	case network != t.from.record.cookie:
		// The runtime is under the filter too while it creates the container.
		err = errors.New("the process is not in it")
	}
	if err != nil {
		for _, bell := range bells {
			unix.Close(bell)
		}
		return fmt.Errorf("use the network namespace of pod %s: %w", p.address, err)
	}
	p.free = bells
	p.setNamespace(network, bells[0])
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	for _, c := range p.containers {
		c.record.bell = int32(bells[0]) // for a successor
	}
	return nil
}

// noteListener records the family of a new listener.
func (p *pod) noteListener(listener int) {
	local, ok := sock.Local(listener)
	domain := sock.Domain(listener)
	if !ok || domain == unix.AF_INET6 && sock.Option(listener, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) == 1 {
		return // which no connection by IPv4 reaches
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
