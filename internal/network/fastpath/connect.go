package fastpath

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/filter"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// handle dispatches a call.
func (s *Switch) handle(t *trap) {
	if t.call().Arch != filter.Arch || uint32(t.call().Call) >= filter.FirstForeignCall {
		s.foreign(t)
		return
	}
	switch t.call().Call {
	case unix.SYS_CONNECT:
		s.connect(t)
	case unix.SYS_ACCEPT, unix.SYS_ACCEPT4:
		s.accept(t)
	case unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME:
		s.name(t)
	case unix.SYS_LISTEN:
		s.listen(t)
	case unix.SYS_SECCOMP:
		s.nested(t)
	case unix.SYS_SYSINFO:
		s.sysinfo(t)
	default:
		t.pass()
	}
}

// nested logs a filter with a listener, which the kernel is about to refuse. A call
// without a program (a null pointer) only probes for the feature.
func (s *Switch) nested(t *trap) {
	if t.call().Args[2] != 0 {
		s.counters.add(countNested)
		s.config.Log.Warn("a program of a pod asks for a seccomp listener (as container engines and bypass4netns do), of which it has one already, the fast path's; annotate the pod with berth.dev/fast-path=off and berth.dev/sysinfo=off", "pod", t.from.pod.address)
	}
	t.pass()
}

// foreign refuses the calls of a program of another architecture, whose arguments are
// packed differently.
func (s *Switch) foreign(t *trap) {
	if !t.from.pod.foreign.Swap(true) {
		s.config.Log.Warn("a 32-bit program of a pod uses sockets, which the fast path refuses it; annotate the pod with berth.dev/fast-path=off", "pod", t.from.pod.address)
	}
	t.refuse(countForeign, unix.ENOSYS)
}

// connect leaves a connect to the kernel, refuses it, or starts to switch the socket.
func (s *Switch) connect(t *trap) {
	socket, ok := t.fetch(t.argument(0))
	if !ok {
		return
	}
	address, errno := t.readAddress(t.call().Args[1], t.argument(2))
	if !t.waits() {
		t.cancelled()
		return
	}
	if s.switched(socket) {
		s.connectSwitched(t, socket, address)
		return
	}
	switch {
	case errno != 0:
		t.answer(0, errno)
		return
	case sock.Option(socket, unix.SOL_SOCKET, unix.SO_PROTOCOL) != unix.IPPROTO_TCP || !sock.IsInet(socket):
		t.proceed(countNotTCP)
		return
	}
	d, why := s.lookUp(t, socket, address)
	if why == 0 {
		var c *connecting
		if c, why = s.plan(t, socket, d); c != nil {
			c.start()
			return
		}
	}
	s.leave(t, socket, d, why)
}

// destination is the target of a connect.
type destination struct {
	asked, target netip.AddrPort
	// ipv6 is set for an IPv6 socket, whose addresses may be mapped IPv4 ones. direct is
	// set if asked is the target itself, outside if it is no pod.
	ipv6, direct, outside bool
}

// lookUp resolves an address. If it returns a count, that is the reason why the call is
// left to the overlay.
func (s *Switch) lookUp(t *trap, socket int, address []byte) (d destination, why count) {
	if sock.State(socket) != sock.Closed {
		return d, countInUse
	}
	var ok bool
	d.asked, d.ipv6, ok = sock.Parse(address)
	if !ok || d.ipv6 != (sock.Domain(socket) == unix.AF_INET6) ||
		d.ipv6 && d.asked.Addr().Is4() && sock.Option(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) == 1 {
		return d, countElsewhere
	}
	route, ok := s.config.ServiceMap.Resolve(d.asked)
	if !ok && s.config.ServiceMap.Outside(d.asked) {
		d.target, d.direct, d.outside = d.asked, true, true
		return d, 0
	}
	if !ok {
		return d, countElsewhere
	}
	if d.direct = len(route.Targets) == 0; d.direct {
		d.target = d.asked
		return d, 0
	}
	target := s.choose(t.from.pod.address, d.asked, route)
	if target.Addr().Is4() != d.asked.Addr().Is4() {
		return d, countElsewhere
	}
	d.target = target
	return d, 0
}

// connectSwitched refuses calls that would connect a socket of the host's network to any
// address.
func (s *Switch) connectSwitched(t *trap, socket int, address []byte) {
	if sock.Family(address) == unix.AF_UNSPEC {
		if !s.checks.refuses(callDisconnect) {
			t.pass()
			return
		}
		t.refuse(countDisconnect, unix.EOPNOTSUPP)
		return
	}
	if !s.checks.refuses(unix.SYS_CONNECT) {
		t.pass()
		return
	}
	cookie, err := sock.Cookie(socket)
	asked, _, ok := sock.Parse(address)
	s.mu.Lock()
	known := s.known[cookie]
	unsaid := err == nil && ok && known != nil && known.unreported && known.peer.addrPort() == asked
	// A socket without a record was connected to the outside, and has failed.
	outside, pending := known == nil || known.outside, known != nil && known.pending
	s.mu.Unlock()
	if unsaid {
		// A signal interrupted the call that connected it, and the kernel has
		// begun it again.
		s.report(t, known, known.progress(socket))
		return
	}
	if outside && err == nil {
		s.reportOutcome(t, socket, cookie, pending)
		return
	}
	t.refuse(countReconnect, unix.EISCONN)
}

// report answers a connect, and records whether the caller received it. It holds the
// lock, because the call may already have been restarted.
func (s *Switch) report(t *trap, known *record, errno unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known.pending = errno == unix.EINPROGRESS
	known.unreported = !t.answer(0, errno)
}

// plan decides whether to switch a socket. If it returns a count, that is the reason
// why not.
func (s *Switch) plan(t *trap, socket int, d destination) (*connecting, count) {
	p := t.from.pod
	var node *peer
	if !d.outside {
		// The bridge between pods of one node is as fast.
		i := s.nodeOf(d.target.Addr())
		if i < 0 || s.peers[i] == nil || i == s.config.Self && d.direct {
			return nil, countElsewhere
		}
		node = s.peers[i]
		if s.habits.short(d.asked, time.Now()) {
			return nil, countShort
		}
	}
	own := p.addressFor(d.target.Addr())
	if !own.IsValid() {
		return nil, countElsewhere
	}
	if !s.permits(own, d.target, d.outside) {
		return nil, countPolicy
	}
	if err := p.findNamespace(t); err != nil {
		return nil, countNoPod
	}
	if network, err := sock.NetworkCookie(socket); err != nil || network != p.network.Load() {
		return nil, countElsewhere
	}
	local, ok := sock.Local(socket)
	device, err := unix.GetsockoptString(socket, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
	if !ok || err != nil || device != "" || !local.Addr().IsUnspecified() && local.Addr() != own {
		return nil, countBound
	}
	port := local.Port()
	if d.outside && port != 0 {
		return nil, countBound // the server may rely on that port
	}
	if port == 0 {
		port = p.nextPort()
	}
	uses := t.usesOf(t.argument(0))
	switch {
	case uses.unseen:
		return nil, countUnlisted
	case uses.crowded:
		return nil, countCrowded
	case uses.duplicated:
		return nil, countDuplicated
	}
	return &connecting{
		t: t, peer: node, destination: d, uses: uses,
		source: netip.AddrPortFrom(own, port), fd: -1,
	}, 0
}
