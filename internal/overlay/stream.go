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

// Carrier is how packets travel between the hosts.
type Carrier string

const (
	// CarrierAuto takes UDP, and TCP to where UDP does not get through.
	CarrierAuto Carrier = ""
	CarrierUDP  Carrier = "udp"
	CarrierTCP  Carrier = "tcp"
)

// A stream carries packets of one queue to one peer over TCP, in one
// direction. It begins with a hello and its answer, which are control
// messages; then come packets, each after its length in four bytes, big
// endian, and with the header that a datagram has. Super-packets stay whole.
type stream struct {
	conn    *net.TCPConn
	raw     syscall.RawConn
	session *session
	// writing is held by who writes to the connection: serve, for all that waits
	// in frames, or send, if nothing does.
	writing sync.Mutex
	frames  chan []byte
	large   sync.Pool // of *[largeFrame]byte
	queued  atomic.Int64
	closed  chan struct{}
	once    sync.Once
}

const (
	lengthLen = 4
	// streamQueue bounds what waits for a slow stream, in bytes and frames.
	// More is dropped, as a router does, and the pods' TCP slows down.
	streamQueue  = 4 << 20
	streamFrames = 1024
	streamBatch  = 64
	// Frames of more than smallFrame bytes are taken from a pool.
	smallFrame = 4096
	largeFrame = lengthLen + wireLen + maxPacket
	// helloTime is how long both sides have to prove who they are.
	helloTime = 3 * time.Second
	// deadTime is after how long without an acknowledgement a stream is dead.
	deadTime = 10 * time.Second
)

// streamEvent is the end of an attempt to have a stream: stream is nil where it
// failed, and ended says that it was up before.
type streamEvent struct {
	path   *path
	stream *stream
	ended  bool
	err    error
}

// wantStream sees to it that there is a stream, or soon will be.
func (p *prober) wantStream(ctx context.Context, one *path, now time.Time) {
	if one.stream != nil || one.dialling || !one.peer.stream.IsValid() || now.Before(one.dialDue) {
		return
	}
	one.dialling = true
	p.connect(ctx, one, one.generation)
}

// hearStream takes in what became of a stream.
func (p *prober) hearStream(event streamEvent, now time.Time) {
	one := event.path
	switch {
	case event.ended:
		if one.stream != event.stream {
			return
		}
		one.stream = nil
		one.dialDue = now
		p.log.Info("a stream to a node ended", "node", one.peer.name, "queue", one.queue, "error", event.err)
		if current := one.sending.Load(); current != nil && current.stream == event.stream {
			one.sending.Store(nil)
			one.told = ""
			p.choose(one)
		}
		one.due = now
	case event.stream == nil:
		one.dialling = false
		one.dialDue = now.Add(streamWait)
		p.log.Debug("no stream to a node", "node", one.peer.name, "queue", one.queue, "error", event.err)
	default:
		one.dialling = false
		if current := p.overlay.tables.Load(); one.peer.index >= len(current.peers) || current.peers[one.peer.index] != one.peer {
			event.stream.close() // the node has moved meanwhile
			return
		}
		one.stream = event.stream
		if one.session == nil {
			// It may just have begun later than this node. Only now that it is
			// known to be there does its silence mean something.
			one.silent, one.since, one.wait, one.due = 0, now, 0, now
		}
		p.choose(one)
	}
}

// dial opens a stream and serves it until it ends or ctx does.
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

// openStream connects and agrees on a session.
func (o *Overlay) openStream(ctx context.Context, one *path, generation uint64) (_ *stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
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
		return nil, fmt.Errorf("greet %s at %s: its answer is not that of a node of this job", one.peer.name, one.peer.stream)
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

// guard has a connection noticed soon whose other side is gone.
func guard(tcp *net.TCPConn) {
	// A connection without is as good until its host dies.
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: deadTime / 2, Interval: deadTime / 5, Count: 3})
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadTime.Milliseconds()))
		})
	}
}

// send takes a packet whose frame, a vnet header and the packet, begins room
// bytes into buffer. It copies, and tells whether there was room. One thread
// calls it.
func (s *stream) send(buffer []byte) bool {
	queued := s.queued.Load()
	if queued+int64(len(buffer)) > streamQueue {
		return false
	}
	frame := s.room(lengthLen + len(buffer))
	copy(frame[lengthLen:], buffer)
	datagram := frame[lengthLen:]
	binary.BigEndian.PutUint32(frame, uint32(len(datagram)))
	binary.BigEndian.PutUint16(datagram[atIndex:], 0)
	datagram[atHeaders], datagram[atFlags] = 0, flagLast
	s.session.seal(datagram[:covered(datagram)], len(datagram))
	// A small packet that has none before it is often one that somebody waits
	// for: to wake the other thread for it would take longer than all else.
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
		// The number is not used: numbers need not follow each other.
		return false
	}
}

// writeAtOnce writes what the connection takes without waiting, and returns the
// rest. That a connection is broken is noticed by serve.
func (s *stream) writeAtOnce(frame []byte) []byte {
	n := 0
	_ = s.raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), frame)
		return true
	})
	return frame[max(n, 0):]
}

func (s *stream) room(size int) []byte {
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

// serve writes what send takes until the stream is closed (nil) or breaks.
func (s *stream) serve() error {
	broken := make(chan error, 1)
	go func() {
		// The peer never writes: this ends with the connection.
		_, err := s.conn.Read(make([]byte, 1))
		broken <- err
	}()
	defer func() { s.close(); <-broken }() //nolint:errcheck // that it was closed
	frames := make([][]byte, 0, streamBatch)
	left := make(net.Buffers, 0, streamBatch)
	for {
		select {
		case <-s.closed:
			return nil
		case err := <-broken:
			broken <- err
			return errors.Join(errors.New("the node has closed it"), err)
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

// close can be called twice, and by anybody.
func (s *stream) close() {
	s.once.Do(func() {
		close(s.closed)
		s.conn.Close()
	})
}

// hear delivers what an incoming stream brings.
func (o *Overlay) hear(conn *net.TCPConn) error {
	_ = conn.SetDeadline(time.Now().Add(helloTime))
	guard(conn)
	from, queue, r, err := o.greet(conn)
	if err != nil {
		o.counts[0].foreign.Add(1)
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	q := o.queues[queue%len(o.queues)]
	into := newGluer(q, q.counts)
	into.single = q.single
	buffer := make([]byte, 0, 4*maxPacket)
	for {
		n, err := conn.Read(buffer[len(buffer):cap(buffer)])
		if err != nil {
			return err
		}
		buffer = buffer[:len(buffer)+n]
		into.table = o.tables.Load()
		if from, err = o.stillThere(into.table, from, conn); err != nil {
			return err
		}
		rest, err := unframe(buffer, from, r, into)
		if err != nil {
			return err
		}
		buffer = buffer[:copy(buffer[:cap(buffer)], rest)]
	}
}

// stillThere ends a stream whose node has moved away.
func (o *Overlay) stillThere(t *table, from *peer, conn net.Conn) (*peer, error) {
	if from.index >= len(t.peers) || t.peers[from.index] == nil || t.peers[from.index].name != from.name {
		return nil, fmt.Errorf("node %s is no longer at %s", from.name, conn.RemoteAddr())
	}
	return t.peers[from.index], nil
}

// unframe delivers the whole frames of data and returns the rest.
func unframe(data []byte, from *peer, r *receiving, into *gluer) ([]byte, error) {
	origin := &source{peer: from}
	for len(data) >= lengthLen {
		size := int(binary.BigEndian.Uint32(data))
		if size < wireLen+minIPv4Header || size > wireLen+maxPacket {
			return nil, fmt.Errorf("take a packet from %s: its length of %d bytes is none", from.name, size)
		}
		if len(data) < lengthLen+size {
			break
		}
		datagram := data[lengthLen : lengthLen+size]
		data = data[lengthLen+size:]
		number, verdict := r.open(datagram)
		if verdict != genuine || isControl(datagram) {
			into.counts.foreign.Add(1)
			return nil, fmt.Errorf("take a packet from %s: it does not prove to be the node's", from.name)
		}
		if err := into.add(origin, number, datagram); err != nil {
			return nil, err
		}
	}
	return data, into.flush()
}

// greet answers the hello of a stream.
func (o *Overlay) greet(conn net.Conn) (*peer, int, *receiving, error) {
	var message [controlLen]byte
	if _, err := io.ReadFull(conn, message[:]); err != nil {
		return nil, 0, nil, fmt.Errorf("answer %s: %w", conn.RemoteAddr(), err)
	}
	hello, ok := decodeControl(message[:])
	t := o.tables.Load()
	if !ok || hello.kind != kindStreamHello || int64(hello.from) >= int64(len(t.peers)) || t.peers[hello.from] == nil {
		return nil, 0, nil, fmt.Errorf("answer %s: it is no node", conn.RemoteAddr())
	}
	from := t.peers[hello.from]
	remote, _ := conn.RemoteAddr().(*net.TCPAddr)
	if !isProven(from.awaited, message[:]) || remote == nil || !from.isAt(remote.AddrPort().Addr()) {
		return nil, 0, nil, fmt.Errorf("answer %s: it is not %s", conn.RemoteAddr(), from.name)
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
