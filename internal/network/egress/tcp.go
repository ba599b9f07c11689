package egress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// leastBuffer and mostBuffer bound the buffer of a connection for each direction on
	// the pods' side, in bytes. The window is half of the buffer, and a segment is 64 KiB.
	leastBuffer = 64 << 10
	mostBuffer  = 1 << 20

	// A removed pod does not close its connections. They end after
	// keepAliveIdle + keepAliveCount*keepAliveInterval.
	keepAliveIdle     = 2 * time.Minute
	keepAliveInterval = 30 * time.Second
	keepAliveCount    = 4

	// timeWait is the duration of TIME_WAIT in the stack. It may be short, because no
	// packet between a pod and the stack is delayed. It must be short: if the outside
	// closes first, the pod's kernel may use the port again at once. During TIME_WAIT the
	// stack ignores its SYN, and the pod repeats the SYN only after a second.
	timeWait = 100 * time.Microsecond
)

// setUpTCP makes the stack pass each new connection of a pod to connect.
func (e *engine) setUpTCP(ctx context.Context) error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	// RACK arms a timer per round trip and, on a path without loss or
	// reordering, finds only losses that did not happen.
	recovery := tcpip.TCPRecovery(0)
	wait := tcpip.TCPTimeWaitTimeoutOption(timeWait)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: mostBuffer, Max: mostBuffer}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: mostBuffer, Max: mostBuffer}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &recovery, &wait, &send, &receive} {
		if err := e.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set up user-mode network stack: set %T: %s", option, err)
		}
	}
	// The table of attempts has its own limits.
	forwarder := tcp.NewForwarder(e.stack, mostBuffer, math.MaxInt, func(request *tcp.ForwarderRequest) {
		if !e.workers.start() {
			e.attempts.complete(request, false)
			return
		}
		defer e.workers.group.Done()
		e.connect(ctx, request)
	})
	e.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, func(id stack.TransportEndpointID, packet *stack.PacketBuffer) bool {
		forward := func() bool { return forwarder.HandlePacket(id, packet) }
		// Read the sequence number here, because the request does not contain it. The pod
		// ignores an ICMP error without it.
		segment := header.TCP(packet.TransportHeader().Slice())
		if segment.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) == header.TCPFlagSyn {
			return e.attempts.admit(ctx, id, segment.SequenceNumber(), forward)
		}
		return forward()
	})
	return nil
}

// connect connects to the destination of a pod's SYN, and then answers the SYN with the
// result. It relays the connection until its end.
func (e *engine) connect(ctx context.Context, request *tcp.ForwarderRequest) {
	id := request.ID()
	pod, remote := endpoints(id)
	attempt := e.attempts.find(id)
	finish := func(reset bool) { e.attempts.complete(request, reset) }
	target, ok := e.target(remote)
	if !ok {
		e.Counters.refused.Add(1)
		e.Log.Debug("refused connection", "from", pod, "to", remote)
		finish(true)
		return
	}
	open := e.Counters.tcp.enter()
	defer e.Counters.tcp.leave()
	if !e.shares.Take(pod.Addr()) {
		e.hasItsShare(pod.Addr())
		finish(true)
		return
	}
	defer e.shares.Give(pod.Addr())
	outside, err := e.dial(attempt.ctx, target)
	e.attempts.answered(attempt)
	if err != nil {
		e.Counters.failed.Add(1)
		e.Log.Debug("connection failed", "from", pod, "to", remote, "error", err)
		finish(e.reject(pod, remote, attempt.sequence, err))
		return
	}
	defer outside.Close()
	queue := new(waiter.Queue)
	inside, refusal := request.CreateEndpoint(queue)
	finish(false)
	if refusal != nil {
		// The pod went away meanwhile.
		e.Counters.failed.Add(1)
		_ = outside.SetLinger(0) // fails only when closed
		return
	}
	defer inside.Close()
	e.bound(inside, open)
	c := &connection{engine: e, outside: outside, inside: inside, queue: queue}
	c.relay(ctx)
}

// hasItsShare counts a connection that is reset because the pod has too many.
func (e *engine) hasItsShare(pod netip.Addr) {
	e.Counters.overflow.Add(1)
	e.warnOnce(fmt.Sprintf("reset connection, too many are open: pod %v has its share of %d", pod, e.Connections))
}

// target returns the addresses for the host to connect to when a pod connects to remote.
// It returns false for an address that pods may not reach.
func (e *engine) target(remote netip.AddrPort) (targets []netip.AddrPort, ok bool) {
	switch e.policy.decide(remote.Addr()) {
	case forward:
		return []netip.AddrPort{remote}, true
	case serve:
		if remote.Port() == dnsPort {
			servers := e.dns.servers()
			return servers, len(servers) > 0
		}
	}
	return nil, false
}

// dial connects to the first of the targets that answers. It returns the errors of all
// targets if none does.
func (e *engine) dial(ctx context.Context, targets []netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
	}}
	dialer.Timeout = e.Dial
	if len(targets) > 1 {
		dialer.Timeout = min(e.Dial, 3*time.Second)
	}
	var problems []error
	for _, target := range targets {
		conn, err := dialer.DialContext(ctx, "tcp", target.String())
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(problems...)
}

// reject reports to the pod why there is no connection. It sends an ICMP error, or returns
// true if the connection must be reset. It does neither after a timeout, because the pod's
// own timer ends then, too. If this process is short of descriptors or memory, it also does
// neither, and the pod's kernel repeats the SYN.
func (e *engine) reject(pod, remote netip.AddrPort, sequence uint32, err error) (reset bool) {
	switch {
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EHOSTDOWN):
		e.sendUnreachable(hostUnreachable, quoteTCP(pod, remote, sequence))
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		e.sendUnreachable(netUnreachable, quoteTCP(pod, remote, sequence))
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.sendUnreachable(prohibited, quoteTCP(pod, remote, sequence))
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		e.warnOfShortage(err)
		return false
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return false
	default:
		var timeout net.Error
		return !errors.As(err, &timeout) || !timeout.Timeout()
	}
	return false
}

// bound limits the buffers of a connection to its share, and turns on keep-alive. open is
// the number of open connections.
func (e *engine) bound(endpoint tcpip.Endpoint, open int64) {
	share := max(leastBuffer, min(mostBuffer, int64(e.BufferBytes)/(2*open)))
	options := endpoint.SocketOptions()
	options.SetReceiveBufferSize(share, true)
	options.SetSendBufferSize(share, true)
	options.SetKeepAlive(true)
	idle, interval := tcpip.KeepaliveIdleOption(keepAliveIdle), tcpip.KeepaliveIntervalOption(keepAliveInterval)
	endpoint.SetSockOpt(&idle)
	endpoint.SetSockOpt(&interval)
	endpoint.SetSockOptInt(tcpip.KeepaliveCountOption, keepAliveCount)
}

// copyBuffers holds buffers for relay. An idle connection uses none.
var copyBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}
