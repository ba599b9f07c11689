package overlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Carrier is the transport of packets between the hosts.
type Carrier string

const (
	// carrierAuto uses UDP, and TCP to nodes that UDP does not reach.
	carrierAuto Carrier = ""
	carrierUDP  Carrier = "udp"
	carrierTCP  Carrier = "tcp"
)

// A stream carries packets from one queue to one peer over TCP, in one
// direction. It begins with a hello and its answer, which are control messages.
// Packets follow, each after its length in four bytes, big endian, and with the
// wire header of a datagram. Super-packets are not segmented.
type stream struct {
	conn    *net.TCPConn
	raw     syscall.RawConn
	session *session
	// writing serializes writes to the connection: by serve for the queued
	// frames, and by send while nothing is queued.
	writing sync.Mutex
	frames  chan []byte
	large   sync.Pool // of *[largeFrame]byte
	queued  atomic.Int64
	closed  chan struct{}
	once    sync.Once
}

const (
	lengthLen = 4
	// streamQueue and streamFrames limit the queue of a slow stream, in bytes
	// and frames. Further packets are dropped, as in a router, and the pods'
	// TCP slows down.
	streamQueue  = 4 << 20
	streamFrames = 1024
	// streamBatch is the largest number of frames that serve writes together.
	streamBatch = 64
	// Frames of more than smallFrame bytes come from a pool, and send leaves them to
	// serve.
	smallFrame = 4096
	largeFrame = lengthLen + wireLen + maxPacket
	// helloTimeout limits the time that each side takes to connect and to
	// authenticate the other.
	helloTimeout = 3 * time.Second
	// streamTimeout is the time without an acknowledgement after which a
	// stream ends.
	streamTimeout = 10 * time.Second
)

// streamEvent reports that a stream is up, that it has ended, or, if stream is
// nil, that an attempt to open one has failed.
type streamEvent struct {
	path   *path
	stream *stream
	ended  bool
	err    error
}

// ensureStream starts to open a stream unless there is one or the next attempt is
// not due.
func (p *prober) ensureStream(ctx context.Context, one *path, now time.Time) {
	if one.stream != nil || one.dialling || !one.peer.stream.IsValid() || now.Before(one.dialDue) {
		return
	}
	one.dialling = true
	p.connect(ctx, one, one.generation)
}

// handleStreamEvent updates the path of a stream.
func (p *prober) handleStreamEvent(event streamEvent, now time.Time) {
	one := event.path
	switch {
	case !p.overlay.table.Load().has(one.peer):
		if event.stream != nil {
			event.stream.close() // it was being opened when the node was replaced
		}
	case event.ended:
		if one.stream != event.stream {
			return
		}
		one.stream = nil
		one.dialDue = now
		p.log.Info("a stream to a node ended", "node", one.peer.name, "queue", one.queue, "error", event.err)
		if current := one.sending.Load(); current != nil && current.stream == event.stream {
			one.sending.Store(nil)
			one.loggedCarrier = ""
			p.choose(one)
		}
		one.due = now
	case event.stream == nil:
		one.dialling = false
		one.dialDue = now.Add(dialInterval)
		p.log.Debug("no stream to a node", "node", one.peer.name, "queue", one.queue, "error", event.err)
	default:
		one.dialling = false
		one.stream = event.stream
		if one.session == nil {
			// The node may have started later than this one. Its silence counts
			// only from now, when it is known to run.
			one.silent, one.since, one.wait, one.due = 0, now, 0, now
		}
		p.choose(one)
	}
}

// dial opens a stream and serves it until it ends or ctx does. It sends events when
// the stream is up, and when it has ended or could not be opened.
func (o *Overlay) dial(ctx context.Context, one *path, generation uint64, events chan<- streamEvent) {
	report := func(event streamEvent) {
		event.path = one
		select {
		case events <- event:
		case <-ctx.Done():
		}
	}
	s, err := o.openStream(ctx, one, generation)
	if err != nil {
		report(streamEvent{err: err})
		return
	}
	report(streamEvent{stream: s})
	release := context.AfterFunc(ctx, s.close)
	defer release()
	err = s.serve()
	s.close()
	report(streamEvent{stream: s, ended: true, err: err})
}

// openStream connects to the peer and establishes a session.
func (o *Overlay) openStream(ctx context.Context, one *path, generation uint64) (_ *stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	conn, err := o.dialTCP(ctx, one.peer.stream)
	if err != nil {
		return nil, fmt.Errorf("connect to %s at %s: %w", one.peer.name, one.peer.stream, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			conn.Close()
		}
	}()
	guard(conn)
	var message [controlLen]byte
	own := newNonce()
	control{kind: kindStreamHello, generation: generation, nonce: own, sequence: uint32(one.queue), from: uint32(o.self)}.encode(one.peer.asking, message[:])
	if _, err := conn.Write(message[:]); err != nil {
		return nil, fmt.Errorf("greet %s at %s: %w", one.peer.name, one.peer.stream, err)
	}
	if _, err := io.ReadFull(conn, message[:]); err != nil {
		return nil, fmt.Errorf("greet %s at %s: %w", one.peer.name, one.peer.stream, err)
	}
	answer, ok := decodeControl(message[:])
	if !ok || answer.kind != kindStreamAnswer || answer.nonce != own || !isProven(one.peer.awaited, message[:]) {
		return nil, fmt.Errorf("greet %s at %s: the answer is not from a node of this job", one.peer.name, one.peer.stream)
	}
	session, err := newSession(o.key, purposeOf("stream", o.self, one.peer.index, generation, own, answer.instance))
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use the connection to %s: %w", one.peer.name, err)
	}
	return &stream{conn: conn, raw: raw, session: session, frames: make(chan []byte, streamFrames), closed: make(chan struct{})}, nil
}

// guard makes a connection fail soon after its other side has disappeared.
func guard(tcp *net.TCPConn) {
	// Errors are ignored: the settings matter only if a host dies.
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: streamTimeout / 2, Interval: streamTimeout / 5, Count: 3})
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(streamTimeout.Milliseconds()))
		})
	}
}

// send copies a packet into the stream and reports whether the queue had space.
// The frame begins headroom bytes into buffer: a vnet header, then the packet. Only
// one thread calls send.
func (s *stream) send(buffer []byte) bool {
	queued := s.queued.Load()
	if queued+int64(len(buffer)) > streamQueue {
		return false
	}
	frame := s.newFrame(lengthLen + len(buffer))
	copy(frame[lengthLen:], buffer)
	datagram := frame[lengthLen:]
	binary.BigEndian.PutUint32(frame, uint32(len(datagram)))
	binary.BigEndian.PutUint16(datagram[atIndex:], 0)
	datagram[atHeaders], datagram[atFlags] = 0, flagLast
	s.session.seal(datagram[:covered(datagram)], len(datagram))
	// The receiver often waits for a small packet. Waking the thread of serve
	// would delay the packet more than the network does.
	if queued == 0 && len(frame) <= smallFrame && s.writing.TryLock() {
		defer s.writing.Unlock()
		if frame = s.writeAtOnce(frame); len(frame) == 0 {
			return true
		}
	}
	select {
	case s.frames <- frame:
		s.queued.Add(int64(len(frame)))
		return true
	default:
		// seal has used up a number, but the receiver accepts gaps.
		return false
	}
}

// writeAtOnce writes as much as the connection accepts without blocking, and
// returns the rest. It ignores errors, which serve meets as well.
func (s *stream) writeAtOnce(frame []byte) []byte {
	n := 0
	_ = s.raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), frame)
		return true
	})
	return frame[max(n, 0):]
}

func (s *stream) newFrame(size int) []byte {
	if size <= smallFrame {
		return make([]byte, size)
	}
	large, ok := s.large.Get().(*[largeFrame]byte)
	if !ok {
		large = new([largeFrame]byte)
	}
	return large[:size]
}

func (s *stream) giveBack(frames [][]byte) {
	for _, frame := range frames {
		if cap(frame) == largeFrame {
			s.large.Put((*[largeFrame]byte)(frame[:largeFrame]))
		}
	}
}

// serve writes the queued frames. It returns nil when the stream is closed, and an
// error when the connection breaks.
func (s *stream) serve() error {
	broken := make(chan error, 1)
	go func() {
		// The peer never writes, so Read returns when the connection ends.
		_, err := s.conn.Read(make([]byte, 1))
		broken <- err
	}()
	defer func() { s.close(); <-broken }() //nolint:errcheck // only waits for the goroutine
	frames := make([][]byte, 0, streamBatch)
	left := make(net.Buffers, 0, streamBatch)
	for {
		select {
		case <-s.closed:
			return nil
		case err := <-broken:
			broken <- err
			return errors.Join(errors.New("the node closed the connection"), err)
		case frame := <-s.frames:
			frames = append(frames[:0], frame)
		}
	more:
		for len(frames) < streamBatch {
			select {
			case frame := <-s.frames:
				frames = append(frames, frame)
			default:
				break more
			}
		}
		writing := append(left[:0], frames...)
		s.writing.Lock()
		_, err := writing.WriteTo(s.conn)
		s.writing.Unlock()
		if err != nil {
			return err
		}
		for _, frame := range frames {
			s.queued.Add(-int64(len(frame)))
		}
		s.giveBack(frames)
	}
}

// close closes the connection, which ends serve. It can be called more than once, and
// from any goroutine.
func (s *stream) close() {
	s.once.Do(func() {
		close(s.closed)
		s.conn.Close()
	})
}

// receiveStream delivers the packets of an incoming stream until the stream or the
// device fails. It always returns an error.
func (o *Overlay) receiveStream(conn *net.TCPConn) error {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	guard(conn)
	from, queue, r, err := o.greet(conn)
	if err != nil {
		o.counts[0].foreign.Add(1)
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	q := o.queues[queue%len(o.queues)]
	into := newCoalescer(q, q.counts)
	into.table, into.single = &o.table, q.single
	buffer := make([]byte, 0, 4*maxPacket)
	for {
		n, err := conn.Read(buffer[len(buffer):cap(buffer)])
		if err != nil {
			return err
		}
		if !o.table.Load().has(from) {
			return errReplaced
		}
		buffer = buffer[:len(buffer)+n]
		rest, err := unframe(buffer, from, r, into)
		if err != nil {
			return err
		}
		buffer = buffer[:copy(buffer[:cap(buffer)], rest)]
	}
}

// unframe delivers the complete frames in data and returns the rest. It returns an
// error if a frame is invalid or not authentic, or if the device is gone.
func unframe(data []byte, from *peer, r *receiving, into *coalescer) ([]byte, error) {
	origin := &source{peer: from}
	for len(data) >= lengthLen {
		size := int(binary.BigEndian.Uint32(data))
		if size < wireLen+minIPv4Header || size > wireLen+maxPacket {
			return nil, fmt.Errorf("receive a packet from %s: invalid length of %d bytes", from.name, size)
		}
		if len(data) < lengthLen+size {
			break
		}
		datagram := data[lengthLen : lengthLen+size]
		data = data[lengthLen+size:]
		number, verdict := r.open(datagram)
		if verdict != genuine || isControl(datagram) {
			into.counts.foreign.Add(1)
			return nil, fmt.Errorf("receive a packet from %s: wrong tag", from.name)
		}
		if err := into.add(origin, number, datagram); err != nil {
			return nil, err
		}
	}
	return data, into.flush()
}

// greet answers the hello of a stream. It returns the peer, the index of the peer's
// queue, and the session. It returns an error if the peer proves no membership of the
// job, or if the connection fails.
func (o *Overlay) greet(conn net.Conn) (*peer, int, *receiving, error) {
	var message [controlLen]byte
	if _, err := io.ReadFull(conn, message[:]); err != nil {
		return nil, 0, nil, fmt.Errorf("answer %s: %w", conn.RemoteAddr(), err)
	}
	hello, ok := decodeControl(message[:])
	t := o.table.Load()
	if !ok || hello.kind != kindStreamHello || int64(hello.from) >= int64(len(t.peers)) || t.peers[hello.from] == nil {
		return nil, 0, nil, fmt.Errorf("answer %s: its hello is not from a node of this job", conn.RemoteAddr())
	}
	from := t.peers[hello.from]
	remote, _ := conn.RemoteAddr().(*net.TCPAddr)
	if !isProven(from.awaited, message[:]) || remote == nil || !from.isAt(remote.AddrPort().Addr()) {
		return nil, 0, nil, fmt.Errorf("answer %s: it claims to be %s without proof", conn.RemoteAddr(), from.name)
	}
	instance := newNonce()
	session, err := newSession(o.key, purposeOf("stream", from.index, o.self, hello.generation, hello.nonce, instance))
	if err != nil {
		return nil, 0, nil, err
	}
	control{kind: kindStreamAnswer, nonce: hello.nonce, instance: instance, from: uint32(o.self)}.encode(from.asking, message[:])
	if _, err := conn.Write(message[:]); err != nil {
		return nil, 0, nil, fmt.Errorf("answer %s: %w", conn.RemoteAddr(), err)
	}
	return from, int(hello.sequence), &receiving{session: session}, nil
}
