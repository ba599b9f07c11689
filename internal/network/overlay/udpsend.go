package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// Limits of a flush. A GSO batch is one message with UDP_SEGMENT, which the kernel
// cuts into datagrams of one size. Only the last one may be shorter.
const (
	maxSegmentsPerBatch = 64      // UDP_MAX_SEGMENTS before Linux 6.9
	maxMessages         = 64      // messages of one sendmmsg(2)
	flushHeaders        = 1 << 17 // bytes for the headers of segments
	maxSegments         = 2048    // segments of one flush; a packet has at most half
	// uncutFor is the number of datagrams that are sent to a peer without
	// UDP_SEGMENT after the kernel refused it. The route may change back.
	uncutFor = 4096
)

type segmentControl struct {
	header unix.Cmsghdr
	size   uint16
	_      [6]byte
}

// udpSender is the sending half of a queue.
type udpSender struct {
	*queue
	waiter *waiter

	headers  []byte
	vector   []unix.Iovec
	messages []linux.Message
	controls []segmentControl
	batches  []gsoBatch
	n        int  // batches in use
	open     bool // the last batch accepts more datagrams
	// uncut holds, by peer index, the number of datagrams that are still to be
	// sent without UDP_SEGMENT; known reports whether the refusal was logged.
	uncut []int
	known []bool
	// single is the message that sendSingly sends.
	single []linux.Message
}

type gsoBatch struct {
	to       *path
	size     int // of each datagram but the last, in bytes
	count    int // datagrams
	bytes    int // of all datagrams
	firstIov int // index in vector
}

func newUDPSender(q *queue) *udpSender {
	s := &udpSender{
		queue:    q,
		waiter:   newWaiter(q.socket, q.end, unix.POLLOUT),
		headers:  make([]byte, 0, flushHeaders),
		vector:   make([]unix.Iovec, 0, 2*maxSegments+maxMessages),
		messages: make([]linux.Message, maxMessages),
		controls: make([]segmentControl, maxMessages),
		batches:  make([]gsoBatch, maxMessages),
		single:   make([]linux.Message, 1),
		uncut:    make([]int, len(q.table.Load().peers)),
		known:    make([]bool, len(q.table.Load().peers)),
	}
	for i := range s.controls {
		c := &s.controls[i].header
		c.Level, c.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
		c.SetLen(unix.CmsgLen(2))
	}
	return s
}

// write sends messages and returns the unsent ones. If it returns an error, the
// kernel refused the first of these. Unsent messages without an error mean that Run
// is ending.
func (s *udpSender) write(messages []linux.Message) ([]linux.Message, error) {
	for len(messages) > 0 {
		n, err := linux.SendMessages(s.socket, messages)
		switch {
		case err == nil:
			messages = messages[n:]
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			if more, err := s.waiter.wait(-1); err != nil || !more {
				return messages, err
			}
		default:
			return messages, err
		}
	}
	return nil, nil
}

// full reports whether the next packet needs a flush first.
func (s *udpSender) full() bool {
	return s.n > maxMessages/2 || cap(s.vector)-len(s.vector) < 2*maxSegments/2+2 || cap(s.headers)-len(s.headers) < flushHeaders/2
}

// send sends a packet to a peer. The frame begins headroom bytes into buffer.
// send overwrites the headroom and uses the buffer until the next flush.
func (s *udpSender) send(to *peer, buffer []byte) {
	if s.index >= len(to.paths) {
		s.counts.unsent.Add(1) // the node has neither endpoints nor a listener
		return
	}
	way := to.paths[s.index]
	by := way.sending.Load()
	frame := buffer[headroom:]
	switch {
	case by == nil:
		s.counts.unsent.Add(1)
		return
	case by.stream != nil:
		if !by.stream.send(buffer) {
			s.counts.unsent.Add(1)
			return
		}
		s.counts.streamed.Add(1)
	default:
		headers, size := cut(frame, by.limit)
		switch {
		case size > 0 && s.sendSegments(way, by.session, frame, headers, size):
		case size <= 0 && len(buffer) <= by.limit:
			s.stamp(buffer[:wireLen], 0, 0, flagLast)
			by.seal(buffer[:covered(buffer)], len(buffer))
			s.enqueue(way, len(buffer), part(buffer), unix.Iovec{})
		case size <= 0:
			s.sendFragments(way, by, frame)
			s.counts.fragmented.Add(1)
		default:
			s.counts.unsent.Add(1)
			return
		}
	}
	s.counts.sentPackets.Add(1)
	s.counts.sentBytes.Add(uint64(len(frame) - linux.VnetHeaderLen))
}

// sendSegments sends a packet as datagrams with one segment each. It returns
// false for a packet with more segments than fit into a flush.
func (s *udpSender) sendSegments(way *path, by *session, frame []byte, headers, size int) bool {
	payload := frame[linux.VnetHeaderLen+headers:]
	segments := (len(payload) + size - 1) / size
	each := wireLen + headers
	if segments > maxSegments/2-2 || segments*each > flushHeaders/2 {
		return false
	}
	binary.NativeEndian.PutUint16(frame[vnetGSOSize:], uint16(size))
	if batch := &s.batches[max(0, s.n-1)]; s.open && (batch.count+segments > maxSegmentsPerBatch || batch.bytes+segments*each+len(payload) > maxUDPPayload) {
		s.open = false // the receiver coalesces a packet that is in one batch
	}
	for i := range segments {
		segment := payload[i*size : min((i+1)*size, len(payload))]
		head := s.head(each)
		copy(head[atVnet:], frame[:linux.VnetHeaderLen+headers])
		flags := byte(0)
		if i == segments-1 {
			flags = flagLast
		}
		s.stamp(head, i, headers, flags)
		by.seal(head, each+len(segment))
		s.enqueue(way, each+len(segment), part(head), part(segment))
	}
	return true
}

// sendFragments sends a packet that is too large for the path and cannot be
// segmented.
func (s *udpSender) sendFragments(way *path, by *sending, frame []byte) {
	packet := frame[linux.VnetHeaderLen:]
	size := by.limit - wireLen
	for i := 0; len(packet) > 0; i++ {
		fragment := packet[:min(size, len(packet))]
		packet = packet[len(fragment):]
		inHead := min(wholeCovered, len(fragment))
		head := s.head(wireLen + inHead)
		copy(head[atVnet:], frame[:linux.VnetHeaderLen])
		copy(head[wireLen:], fragment)
		flags := byte(flagFragment)
		if len(packet) == 0 {
			flags |= flagLast
		}
		s.stamp(head, i, 0, flags)
		by.seal(head, wireLen+len(fragment))
		var rest unix.Iovec
		if len(fragment) > inHead {
			rest = part(fragment[inHead:])
		}
		s.enqueue(way, wireLen+len(fragment), part(head), rest)
	}
}

// head returns space for the first bytes of a datagram, valid until the next
// flush.
func (s *udpSender) head(size int) []byte {
	at := len(s.headers)
	s.headers = s.headers[:at+size]
	return s.headers[at:]
}

// stamp fills in the fields of a wire header that do not belong to the session.
func (s *udpSender) stamp(head []byte, index, headers int, flags byte) {
	binary.BigEndian.PutUint16(head[atIndex:], uint16(index))
	head[atHeaders], head[atFlags] = byte(headers), flags
}

// enqueue adds a datagram of one or two parts to the open batch, or to a new one.
func (s *udpSender) enqueue(to *path, size int, first, second unix.Iovec) {
	alone := s.uncut[to.peer.index] > 0
	if alone {
		s.uncut[to.peer.index]--
	}
	if s.open && !alone {
		batch := &s.batches[s.n-1]
		if batch.to == to && size <= batch.size && batch.count < maxSegmentsPerBatch && batch.bytes+size <= maxUDPPayload {
			s.extend(batch, size, first, second)
			return
		}
	}
	if s.n == maxMessages {
		if s.flushMessages() != nil {
			return // flush meets the same error and returns it
		}
	}
	s.batches[s.n] = gsoBatch{to: to, size: size, firstIov: len(s.vector)}
	s.n++
	s.open = true
	s.extend(&s.batches[s.n-1], size, first, second)
	if alone {
		s.open = false
	}
}

func (s *udpSender) extend(batch *gsoBatch, size int, first, second unix.Iovec) {
	s.vector = append(s.vector, first)
	if second.Len > 0 {
		s.vector = append(s.vector, second)
	}
	batch.count++
	batch.bytes += size
	s.open = size == batch.size
}

// flush sends all batches. It returns an error only if the socket is unusable.
func (s *udpSender) flush() error {
	err := s.flushMessages()
	s.vector, s.headers = s.vector[:0], s.headers[:0]
	return err
}

// flushMessages sends all batches but keeps the headers, which a packet that is
// being segmented still needs.
func (s *udpSender) flushMessages() error {
	n := s.n
	s.n, s.open = 0, false
	for i := range n {
		s.prepare(i, n)
	}
	for sent := 0; sent < n; {
		left, err := s.write(s.messages[sent:n])
		if err == nil {
			return nil
		}
		sent = n - len(left)
		if err := s.handleRefusal(sent, err); err != nil {
			return err
		}
		sent++
	}
	return nil
}

// prepare turns a batch into a message.
func (s *udpSender) prepare(i, n int) {
	batch, message := &s.batches[i], &s.messages[i]
	end := len(s.vector)
	if i+1 < n {
		end = s.batches[i+1].firstIov
	}
	address := &batch.to.sockaddr
	*message = linux.Message{}
	message.Name, message.Namelen = (*byte)(unsafe.Pointer(address)), addressLen(address)
	message.Iov = &s.vector[batch.firstIov]
	message.SetIovlen(end - batch.firstIov)
	if batch.count > 1 {
		s.controls[i].size = uint16(batch.size)
		message.Control = (*byte)(unsafe.Pointer(&s.controls[i]))
		message.SetControllen(int(unsafe.Sizeof(s.controls[i])))
	}
}

// handleRefusal handles a batch that the kernel refused. UDP_SEGMENT fails on a path
// narrower than the device's MTU, and on an interface without checksum offload. If
// that may be the cause, handleRefusal sends the datagrams one by one. It returns an
// error only if the socket is unusable.
func (s *udpSender) handleRefusal(i int, cause error) error {
	batch := &s.batches[i]
	refusal := errors.Is(cause, unix.EINVAL) || errors.Is(cause, unix.EMSGSIZE) || errors.Is(cause, unix.EIO) || errors.Is(cause, unix.EOPNOTSUPP)
	if batch.count == 1 || !refusal {
		s.counts.unsent.Add(uint64(batch.count))
		s.log.Debug("datagram not sent", "node", batch.to.peer.name, "bytes", batch.size, "error", cause)
		if errors.Is(cause, unix.EBADF) {
			return fmt.Errorf("send to other nodes: %w", cause)
		}
		return nil
	}
	s.uncut[batch.to.peer.index] = uncutFor
	s.counts.uncut.Add(1)
	if !s.known[batch.to.peer.index] {
		s.known[batch.to.peer.index] = true
		s.log.Warn("the host does not cut packets to a node; the network between them is slower", "node", batch.to.peer.name, "bytes", batch.size, "error", cause)
	}
	return s.sendSingly(i)
}

// sendSingly sends the datagrams of a batch without UDP_SEGMENT. It counts a datagram as
// unsent if the kernel refuses it.
func (s *udpSender) sendSingly(i int) error {
	batch := &s.batches[i]
	iov := batch.firstIov
	for left := batch.bytes; left > 0; {
		size, parts := 0, 0
		for size < min(batch.size, left) {
			size += int(s.vector[iov+parts].Len)
			parts++
		}
		message := &s.single[0]
		*message = s.messages[i]
		message.Iov = &s.vector[iov]
		message.SetIovlen(parts)
		message.Control, message.Controllen = nil, 0
		if rest, err := s.write(s.single); err != nil {
			s.counts.unsent.Add(1)
		} else if len(rest) > 0 {
			return nil
		}
		left -= size
		iov += parts
	}
	return nil
}
