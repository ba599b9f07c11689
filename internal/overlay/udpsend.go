package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// Limits of a batch. Trains are what one sendmsg(2) with UDP_SEGMENT takes:
// datagrams of one size, the last may be shorter.
const (
	maxTrain     = 64      // UDP_MAX_SEGMENTS before Linux 6.9
	maxMessages  = 64      // of one sendmmsg(2)
	batchHeaders = 1 << 17 // bytes for the headers of segments
	maxSegments  = 2048    // of one packet at most, and of a batch with what is before
	// uncutFor is for how many datagrams to a peer UDP_SEGMENT is left alone
	// once the kernel refused it: a route may change back.
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
	meta     []trainMeta
	n        int // messages in use
	open     bool
	// uncut is, by the index of a peer, for how many datagrams more each is
	// to be sent by itself; known, that this was logged.
	uncut  []int
	known  []bool
	single []linux.Message
}

type trainMeta struct {
	to       *path
	size     int // of a datagram
	count    int
	bytes    int
	firstIov int
}

func newUDPSender(q *queue) *udpSender {
	s := &udpSender{
		queue:    q,
		waiter:   newWaiter(q.socket, q.end, unix.POLLOUT),
		headers:  make([]byte, 0, batchHeaders),
		vector:   make([]unix.Iovec, 0, 2*maxSegments+maxMessages),
		messages: make([]linux.Message, maxMessages),
		controls: make([]segmentControl, maxMessages),
		meta:     make([]trainMeta, maxMessages),
		single:   make([]linux.Message, 1),
	}
	for i := range s.controls {
		c := &s.controls[i].header
		c.Level, c.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
		c.SetLen(unix.CmsgLen(2))
	}
	return s
}

// write sends messages and returns those left: with an error, the first of
// them was refused; without, all is to end.
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

func (s *udpSender) use(t *table) {
	s.uncut = make([]int, len(t.peers))
	s.known = make([]bool, len(t.peers))
}

func (s *udpSender) full() bool {
	return s.n > maxMessages/2 || cap(s.vector)-len(s.vector) < 2*maxSegments/2+2 || cap(s.headers)-len(s.headers) < batchHeaders/2
}

// send takes a packet for a peer, whose frame begins room bytes into buffer.
// It uses the room, and the buffer until the next flush.
func (s *udpSender) send(to *peer, buffer []byte) {
	if s.index >= len(to.paths) {
		s.counts.unsent.Add(1) // the node is at no address yet
		return
	}
	way := to.paths[s.index]
	by := way.sending.Load()
	frame := buffer[room:]
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
			s.board(way, len(buffer), part(buffer), unix.Iovec{})
		case size <= 0:
			s.sendPieces(way, by, frame)
			s.counts.pieced.Add(1)
		default:
			s.counts.unsent.Add(1)
			return
		}
	}
	s.counts.sentPackets.Add(1)
	s.counts.sentBytes.Add(uint64(len(frame) - linux.VnetHeaderLen))
}

// sendSegments sends a packet as datagrams of one segment each. It does not
// where they are smaller than those that any program sends.
func (s *udpSender) sendSegments(way *path, by *session, frame []byte, headers, size int) bool {
	payload := frame[linux.VnetHeaderLen+headers:]
	segments := (len(payload) + size - 1) / size
	each := wireLen + headers
	if segments > maxSegments/2-2 || segments*each > batchHeaders/2 {
		return false
	}
	binary.NativeEndian.PutUint16(frame[vnetGSOSize:], uint16(size))
	if train := &s.meta[max(0, s.n-1)]; s.open && (train.count+segments > maxTrain || train.bytes+segments*each+len(payload) > maxUDPPayload) {
		s.open = false // a packet that is in one train arrives as one
	}
	for i := range segments {
		piece := payload[i*size : min((i+1)*size, len(payload))]
		head := s.head(each)
		copy(head[atVnet:], frame[:linux.VnetHeaderLen+headers])
		flags := byte(0)
		if i == segments-1 {
			flags = flagLast
		}
		s.stamp(head, i, headers, flags)
		by.seal(head, each+len(piece))
		s.board(way, each+len(piece), part(head), part(piece))
	}
	return true
}

// sendPieces sends a packet that is too large and cannot be cut into segments.
func (s *udpSender) sendPieces(way *path, by *sending, frame []byte) {
	packet := frame[linux.VnetHeaderLen:]
	size := by.limit - wireLen
	for i := 0; len(packet) > 0; i++ {
		piece := packet[:min(size, len(packet))]
		packet = packet[len(piece):]
		inHead := min(wholeCovered, len(piece))
		head := s.head(wireLen + inHead)
		copy(head[atVnet:], frame[:linux.VnetHeaderLen])
		copy(head[wireLen:], piece)
		flags := byte(flagPiece)
		if len(packet) == 0 {
			flags |= flagLast
		}
		s.stamp(head, i, 0, flags)
		by.seal(head, wireLen+len(piece))
		var rest unix.Iovec
		if len(piece) > inHead {
			rest = part(piece[inHead:])
		}
		s.board(way, wireLen+len(piece), part(head), rest)
	}
}

// head is room for the first bytes of a datagram, until the next flush.
func (s *udpSender) head(size int) []byte {
	at := len(s.headers)
	s.headers = s.headers[:at+size]
	return s.headers[at:]
}

// stamp fills the fields of a wire header in that are not of the session.
func (s *udpSender) stamp(head []byte, index, headers int, flags byte) {
	binary.BigEndian.PutUint16(head[atIndex:], uint16(index))
	head[atHeaders], head[atFlags] = byte(headers), flags
}

// board puts a datagram of one or two parts on the train, or on a new one.
func (s *udpSender) board(to *path, size int, first, second unix.Iovec) {
	alone := s.uncut[to.peer.index] > 0
	if alone {
		s.uncut[to.peer.index]--
	}
	if s.open && !alone {
		train := &s.meta[s.n-1]
		if train.to == to && size <= train.size && train.count < maxTrain && train.bytes+size <= maxUDPPayload {
			s.couple(train, size, first, second)
			return
		}
	}
	if s.n == maxMessages {
		if s.flushKeeping() != nil {
			return // the next flush says so again
		}
	}
	s.meta[s.n] = trainMeta{to: to, size: size, firstIov: len(s.vector)}
	s.n++
	s.open = true
	s.couple(&s.meta[s.n-1], size, first, second)
	if alone {
		s.open = false
	}
}

func (s *udpSender) couple(train *trainMeta, size int, first, second unix.Iovec) {
	s.vector = append(s.vector, first)
	if second.Len > 0 {
		s.vector = append(s.vector, second)
	}
	train.count++
	train.bytes += size
	s.open = size == train.size
}

// flush sends all trains. An error ends the carrier.
func (s *udpSender) flush() error {
	err := s.flushKeeping()
	s.vector, s.headers = s.vector[:0], s.headers[:0]
	return err
}

// flushKeeping is flush where headers of a packet that is being cut are still
// needed.
func (s *udpSender) flushKeeping() error {
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
		if err := s.giveWay(sent, err); err != nil {
			return err
		}
		sent++
	}
	return nil
}

// prepare makes a message of a train.
func (s *udpSender) prepare(i, n int) {
	train, message := &s.meta[i], &s.messages[i]
	end := len(s.vector)
	if i+1 < n {
		end = s.meta[i+1].firstIov
	}
	address := &train.to.sockaddr
	*message = linux.Message{}
	message.Name, message.Namelen = (*byte)(unsafe.Pointer(address)), addressLen(address)
	message.Iov = &s.vector[train.firstIov]
	message.SetIovlen(end - train.firstIov)
	if train.count > 1 {
		s.controls[i].size = uint16(train.size)
		message.Control = (*byte)(unsafe.Pointer(&s.controls[i]))
		message.SetControllen(int(unsafe.Sizeof(s.controls[i])))
	}
}

// giveWay deals with a train that the kernel refused. One that can be sent
// datagram by datagram is: a path narrower than the device's MTU, and a host
// whose interface computes no checksums, refuse UDP_SEGMENT.
func (s *udpSender) giveWay(i int, cause error) error {
	train := &s.meta[i]
	refusal := errors.Is(cause, unix.EINVAL) || errors.Is(cause, unix.EMSGSIZE) || errors.Is(cause, unix.EIO) || errors.Is(cause, unix.EOPNOTSUPP)
	if train.count == 1 || !refusal {
		s.counts.unsent.Add(uint64(train.count))
		s.log.Debug("datagram not sent", "node", train.to.peer.name, "bytes", train.size, "error", cause)
		if errors.Is(cause, unix.EBADF) {
			return fmt.Errorf("send to other nodes: %w", cause)
		}
		return nil
	}
	s.uncut[train.to.peer.index] = uncutFor
	s.counts.uncut.Add(1)
	if !s.known[train.to.peer.index] {
		s.known[train.to.peer.index] = true
		s.log.Warn("the host does not cut packets to a node; the network between them is slower", "node", train.to.peer.name, "bytes", train.size, "error", cause)
	}
	return s.sendSingly(i)
}

func (s *udpSender) sendSingly(i int) error {
	train := &s.meta[i]
	iov := train.firstIov
	for left := train.bytes; left > 0; {
		size, parts := 0, 0
		for size < min(train.size, left) {
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
