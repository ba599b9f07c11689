package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// receiveBatch is how many messages one recvmmsg(2) takes. Each may be as
// large as UDP_GRO makes it. Where the host's interface does not join them, a
// packet of 64 KiB is 46 messages at an MTU of 1500, and should be one again.
// A buffer costs memory once it was filled.
const (
	receiveBatch = 48
	// After a message of largeMessage bytes the next batch has few.
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

	// instance is this receiver's part of its sessions' secrets.
	instance nonce
	known    *table
	origins  map[netip.AddrPort]*origin
	reply    [controlLen]byte
	strange  map[uint32]bool // nodes that were logged
}

// origin is a socket of a peer that sends to this one.
type origin struct {
	source
	session    *receiving // nil until there was a hello
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

// receive delivers what arrives until the end (nil).
func (q *queue) receive() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := newUDPReceiver(q)
	into := newGluer(q, q.counts)
	into.single = q.single
	waiter := newWaiter(q.socket, q.end, unix.POLLIN)
	batch := receiveBatch
	drained := false
	for !q.ended() {
		if drained {
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
			drained = true
			continue
		case errors.Is(err, unix.EINTR) || isRemoteError(err):
			continue
		case err != nil:
			return fmt.Errorf("receive from other nodes: %w", err)
		}
		drained = n < batch
		if err := r.unpack(n, into); err != nil {
			return err
		}
		// What is large goes on while it is in the processor's cache.
		batch = receiveBatch
		if r.messages[0].Length >= largeMessage {
			batch = fewMessages
		}
	}
	return nil
}

// isRemoteError tells whether an error is only what an ICMP message said about
// a datagram that was sent.
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

func (r *udpReceiver) unpack(n int, into *gluer) error {
	if t := r.tables.Load(); t != r.known {
		r.learn(t)
	}
	into.table = r.known
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

func (r *udpReceiver) take(from *origin, name *unix.RawSockaddrInet6, datagram []byte, into *gluer) error {
	switch {
	case len(datagram) < wireLen:
		r.counts.foreign.Add(1)
		return nil
	case isControl(datagram):
		r.hearControl(from, name, datagram)
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

// learn keeps what is known of the sockets that are in the new table, too.
func (r *udpReceiver) learn(t *table) {
	for address, from := range r.origins {
		now := t.bySource[address]
		if now == nil || now.index != from.peer.index || now.name != from.peer.name {
			delete(r.origins, address)
			continue
		}
		from.peer = now
	}
	r.known = t
}

// origin is nil where no peer is.
func (r *udpReceiver) origin(address netip.AddrPort) *origin {
	if from := r.origins[address]; from != nil {
		return from
	}
	to := r.known.bySource[address]
	if to == nil {
		return nil
	}
	from := &origin{source: source{peer: to}}
	r.origins[address] = from
	return from
}

// hearControl answers a hello, and hands an answer on.
func (r *udpReceiver) hearControl(from *origin, name *unix.RawSockaddrInet6, datagram []byte) {
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
		default: // It will be asked again.
		}
	default:
		r.counts.foreign.Add(1)
	}
}

// agree makes a session of the first hello of a generation. One that is played
// back is of a generation that is known or past.
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
	default: // It will be asked anyway, later.
	}
}

// explain logs once that a node of the job sends from where it is not expected.
// Its packets are not taken: anybody could have sent them on.
func (r *udpReceiver) explain(c control, name *unix.RawSockaddrInet6, datagram []byte) {
	if int64(c.from) >= int64(len(r.known.peers)) || r.known.peers[c.from] == nil || r.strange[c.from] {
		return
	}
	to := r.known.peers[c.from]
	if !isProven(to.awaited, datagram) {
		return
	}
	r.strange[c.from] = true
	r.log.Warn("a node sends from another address than the one it is reached at, and is not heard; choose one network with --interface", "node", to.name, "from", sourceOf(name), "expected", to.endpoints)
}

// groSize is the size of the datagrams that the kernel put into one message;
// 0 where it is one.
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
