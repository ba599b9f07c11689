package fastpath

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// connect leaves a connect to the kernel, refuses it, or starts to switch the socket.
func (o *outbound) connect(t *trap) {
	socket, ok := t.fetch(t.argument(0))
	if !ok {
		return
	}
	address, errno := t.readAddress(t.call().Args[1], t.argument(2))
	if !t.waits() {
		t.cancelled()
		return
	}
	if o.switched(socket) {
		o.sockets.connectAgain(t, socket, address)
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
	d, why := o.lookUp(t, socket, address)
	if why == 0 {
		var c *connecting
		if c, why = o.plan(t, socket, d); c != nil {
			c.start()
			return
		}
	}
	o.leave(t, socket, d, why)
}

// lookUp resolves an address. If it returns a count, that is the reason why the call is
// left to the overlay.
func (o *outbound) lookUp(t *trap, socket int, address []byte) (d destination, why count) {
	if sock.State(socket) != sock.Closed {
		return d, countInUse
	}
	var ok bool
	d.asked, d.ipv6, ok = sock.Parse(address)
	if !ok || d.ipv6 != (sock.Domain(socket) == unix.AF_INET6) ||
		d.ipv6 && d.asked.Addr().Is4() && sock.Option(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) == 1 {
		return d, countElsewhere
	}
	route, ok := o.config.ServiceMap.Resolve(d.asked)
	if !ok && o.config.ServiceMap.Outside(d.asked) {
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
	target := o.affinity.choose(t.from.pod.address, d.asked, route)
	if target.Addr().Is4() != d.asked.Addr().Is4() {
		return d, countElsewhere
	}
	d.target = target
	return d, 0
}

// plan decides whether to switch a socket. If it returns a count, that is the reason
// why not.
func (o *outbound) plan(t *trap, socket int, d destination) (*connecting, count) {
	p := t.from.pod
	var node *peer
	if !d.outside {
		// The bridge between pods of one node is as fast.
		i := o.control.nodeOf(d.target.Addr())
		if i < 0 || i == o.config.Self && d.direct {
			return nil, countElsewhere
		}
		if node = o.peers[i].Load(); node == nil {
			return nil, countElsewhere
		}
		if o.habits.short(d.asked, time.Now()) {
			return nil, countShort
		}
	}
	own := p.addressFor(d.target.Addr())
	if !own.IsValid() {
		return nil, countElsewhere
	}
	if !o.control.permits(own, d.target, d.outside) {
		return nil, countPolicy
	}
	if err := o.pods.findNamespace(t); err != nil {
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
		o: o, t: t, peer: node, destination: d, uses: uses,
		source: netip.AddrPortFrom(own, port), fd: -1,
	}, 0
}
