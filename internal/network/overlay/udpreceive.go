package overlay

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

const (
	// receiveBatch is the number of messages of one recvmmsg(2). UDP_GRO may
	// make each of them large. If the host's interface does not coalesce, a
	// packet of 64 KiB arrives as 46 messages at an MTU of 1500, and one batch
	// should hold them all. A buffer uses memory only once it has been filled.
	receiveBatch = 48
	// After a message of largeMessage bytes the next batch is small, so that
	// its packets are still in the processor's cache when they are written.
	largeMessage = 1 << 14
	fewMessages  = 2
)

// udpReceiver is the receiving half of a queue.
type udpReceiver struct {
	*queue
	buffers  []byte
	vectors  []unix.Iovec
	names    []unix.RawSockaddrInet6
	controls [][32]byte
	messages []linux.Message

	// instance is the nonce that the receiver contributes to its sessions.
	instance nonce
	// origins holds the peers of nodes. It is checked when the table is another one.
	origins map[netip.AddrPort]*origin
	nodes   *table
	reply   [controlLen]byte
	strange map[uint32]bool // indexes of the nodes that explain has warned of
}

// origin is a peer's socket that sends to this one.
type origin struct {
	source
	session    *receiving // nil until a hello has arrived
	generation uint64
	nonce      nonce
}

func newUDPReceiver(q *queue) *udpReceiver {
	r := &udpReceiver{
		queue:    q,
		buffers:  make([]byte, receiveBatch*(maxPacket+1)),
		vectors:  make([]unix.Iovec, receiveBatch),
		names:    make([]unix.RawSockaddrInet6, receiveBatch),
		controls: make([][32]byte, receiveBatch),
		messages: make([]linux.Message, receiveBatch),
		instance: newNonce(),
		origins:  map[netip.AddrPort]*origin{},
		strange:  map[uint32]bool{},
	}
	for i := range r.messages {
		r.vectors[i] = part(r.buffer(i))
		message := &r.messages[i]
		message.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		message.Iov = &r.vectors[i]
		message.SetIovlen(1)
		message.Control = &r.controls[i][0]
	}
	return r
}

func (r *udpReceiver) buffer(i int) []byte {
	return r.buffers[i*(maxPacket+1) : (i+1)*(maxPacket+1)]
}

// receive delivers arriving packets until Run ends, and then returns nil.
func (q *queue) receive() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := newUDPReceiver(q)
	into := newCoalescer(q, q.counts)
	into.table, into.single = q.table, q.single
	waiter := newWaiter(q.socket, q.end, unix.POLLIN)
	batch := receiveBatch
	empty := false
	for !q.ended() {
		if empty {
			if more, err := waiter.wait(-1); err != nil || !more {
				return err
			}
		}
		for i := range batch {
			r.messages[i].Namelen = unix.SizeofSockaddrInet6
			r.messages[i].SetControllen(len(r.controls[i]))
		}
		n, err := linux.ReceiveMessages(q.socket, r.messages[:batch])
		switch {
		case errors.Is(err, unix.EAGAIN):
			empty = true
			continue
		case errors.Is(err, unix.EINTR) || isRemoteError(err):
			continue
		case err != nil:
			return fmt.Errorf("receive from other nodes: %w", err)
		}
		empty = n < batch
		if err := r.unpack(n, into); err != nil {
			return err
		}
		batch = receiveBatch
		if r.messages[0].Length >= largeMessage {
			batch = fewMessages
		}
	}
	return nil
}

// isRemoteError reports whether an error only repeats an ICMP message about an
// earlier datagram.
func isRemoteError(err error) bool {
	var number unix.Errno
	if !errors.As(err, &number) {
		return false
	}
	switch number {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EMSGSIZE, unix.EHOSTDOWN, unix.EPROTO:
		return true
	}
	return false
}

// unpack delivers the datagrams of the first n messages. It returns an error only if
// the device is gone.
func (r *udpReceiver) unpack(n int, into *coalescer) error {
	for i := range n {
		message := &r.messages[i]
		data := r.buffer(i)[:message.Length]
		name := &r.names[i]
		from := r.origin(sourceOf(name))
		size := len(data)
		if cut := groSize(r.controls[i][:message.Controllen]); cut > 0 {
			size = cut
		}
		if len(data) == 0 {
			r.counts.foreign.Add(1)
		}
		for len(data) > 0 {
			datagram := data[:min(size, len(data))]
			data = data[len(datagram):]
			if err := r.take(from, name, datagram, into); err != nil {
				return err
			}
		}
	}
	return into.flush()
}

// take handles a control message, or adds an authentic datagram to the coalescer. from
// is nil if no peer has the address name.
func (r *udpReceiver) take(from *origin, name *unix.RawSockaddrInet6, datagram []byte, into *coalescer) error {
	switch {
	case len(datagram) < wireLen:
		r.counts.foreign.Add(1)
		return nil
	case isControl(datagram):
		r.handleControl(from, name, datagram)
		return nil
	case from == nil || from.session == nil:
		r.counts.foreign.Add(1)
		return nil
	}
	number, verdict := from.session.open(datagram)
	switch verdict {
	case forged:
		r.counts.foreign.Add(1)
	case replayed:
		r.counts.replayed.Add(1)
	default:
		return into.add(&from.source, number, datagram)
	}
	return nil
}

// origin returns the origin with the address, or nil if no peer has it.
func (r *udpReceiver) origin(address netip.AddrPort) *origin {
	if nodes := r.table.Load(); nodes != r.nodes {
		r.nodes = nodes
		maps.DeleteFunc(r.origins, func(_ netip.AddrPort, from *origin) bool { return !nodes.has(from.peer) })
		clear(r.strange)
	}
	if from := r.origins[address]; from != nil {
		return from
	}
	to := r.nodes.bySource[address]
	if to == nil {
		return nil
	}
	from := &origin{source: source{peer: to}}
	r.origins[address] = from
	return from
}

// handleControl replies to a hello, and passes an answer to the prober.
func (r *udpReceiver) handleControl(from *origin, name *unix.RawSockaddrInet6, datagram []byte) {
	c, ok := decodeControl(datagram)
	switch {
	case !ok:
		r.counts.foreign.Add(1)
	case from == nil:
		r.counts.foreign.Add(1)
		r.explain(c, name, datagram)
	case int(c.from) != from.peer.index || !isProven(from.peer.awaited, datagram):
		r.counts.foreign.Add(1)
	case c.kind == kindHello:
		r.agree(from, c)
		answer := control{kind: kindAnswer, generation: from.generation, nonce: c.nonce, instance: r.instance, sequence: c.sequence, size: uint32(len(datagram)), from: uint32(r.self)}
		answer.encode(from.peer.asking, r.reply[:])
		r.sendControl(r.reply[:], name)
	case c.kind == kindAnswer:
		select {
		case r.prober.answers <- answer{from: from.peer, queue: r.index, control: c}:
		default: // the prober asks again
		}
	default:
		r.counts.foreign.Add(1)
	}
}

// agree starts a session on the first hello of a new generation. A replayed hello
// has a generation that is already known.
func (r *udpReceiver) agree(from *origin, hello control) {
	if from.session != nil && hello.generation <= from.generation {
		return
	}
	fresh, err := newSession(r.key, purposeOf("datagrams", from.peer.index, r.self, hello.generation, hello.nonce, r.instance))
	if err != nil {
		r.log.Warn("no session with a node", "node", from.peer.name, "error", err)
		return
	}
	from.session = &receiving{session: fresh}
	from.generation, from.nonce = hello.generation, hello.nonce
	select {
	case r.prober.kicks <- from.peer:
	default: // the prober asks later anyway
	}
}

// explain logs once that a node of the job sends from an unexpected address. Its
// packets are dropped, because anybody could have relayed them.
func (r *udpReceiver) explain(c control, name *unix.RawSockaddrInet6, datagram []byte) {
	if int64(c.from) >= int64(len(r.nodes.peers)) || r.nodes.peers[c.from] == nil || r.strange[c.from] {
		return
	}
	to := r.nodes.peers[c.from]
	if len(to.endpoints) == 0 || !isProven(to.awaited, datagram) {
		return // a node that has just taken this place may be faster than the message about it
	}
	r.strange[c.from] = true
	r.log.Warn("dropping packets of a node that sends from an unexpected address; choose one network with --interface", "node", to.name, "from", sourceOf(name), "expected", to.endpoints)
}

// groSize returns the size of the datagrams that the kernel coalesced into a
// message, or 0 if the message is one datagram.
func groSize(control []byte) int {
	if len(control) < unix.SizeofCmsghdr+4 {
		return 0
	}
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	if header.Level != unix.IPPROTO_UDP || header.Type != unix.UDP_GRO {
		return 0
	}
	return int(*(*int32)(unsafe.Pointer(&control[unix.CmsgLen(0)])))
}
