package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
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
	queue  int
	raw    syscall.RawConn
	log    *slog.Logger
	counts *counts
	halted *atomic.Bool

	number   uint16
	headers  []byte
	vector   []unix.Iovec
	messages []linux.Message
	controls []segmentControl
	meta     []trainMeta
	n        int // messages in use
	open     bool
	// uncut is, by the index of a peer, for how many datagrams more each is
	// to be sent by itself; known, that this was logged.
	uncut []int
	known []bool

	// What write works on, since it must not be made anew for each batch.
	write   func(fd uintptr) bool
	pending []linux.Message
	failure error
	single  []linux.Message
}

type trainMeta struct {
	to       *peer
	size     int // of a datagram
	count    int
	bytes    int
	firstIov int
}

func newUDPSender(queue int, raw syscall.RawConn, counts *counts, halted *atomic.Bool, log *slog.Logger) *udpSender {
	s := &udpSender{
		queue: queue, raw: raw, log: log, counts: counts, halted: halted,
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
	s.write = func(fd uintptr) bool {
		for len(s.pending) > 0 {
			n, err := linux.SendMessages(int(fd), s.pending)
			switch {
			case err == nil:
				s.pending = s.pending[n:]
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				return s.halted.Load()
			default:
				s.failure = err
				return true
			}
		}
		return true
	}
	return s
}

func (s *udpSender) use(t *table) {
	s.uncut = make([]int, len(t.peers))
	s.known = make([]bool, len(t.peers))
}

func (s *udpSender) full() bool {
	return s.n > maxMessages/2 || cap(s.vector)-len(s.vector) < 2*maxSegments/2+2 || cap(s.headers)-len(s.headers) < batchHeaders/2
}

func (s *udpSender) send(to *peer, buffer []byte) {
	if len(to.sockaddr) == 0 {
		s.counts.unsent.Add(1)
		return
	}
	s.number++
	frame := buffer[room:]
	headers, size := cut(frame)
	if size == 0 {
		s.counts.sentPackets.Add(1)
		s.counts.sentBytes.Add(uint64(len(frame) - linux.VnetHeaderLen))
		if len(buffer) > maxUDPPayload {
			s.counts.unsent.Add(1)
			return
		}
		s.stamp(buffer[:room], to, 0, 0, true)
		s.board(to, len(buffer), part(buffer), unix.Iovec{})
		return
	}
	payload := frame[linux.VnetHeaderLen+headers:]
	segments := (len(payload) + size - 1) / size
	each := wireLen + headers
	if segments > maxSegments/2-2 || segments*each > batchHeaders/2 || each+size > maxUDPPayload {
		s.counts.unsent.Add(1) // no TCP has segments this small
		return
	}
	s.counts.sentPackets.Add(1)
	s.counts.sentBytes.Add(uint64(headers + len(payload)))
	for i := range segments {
		at := len(s.headers)
		s.headers = s.headers[:at+each]
		head := s.headers[at:]
		s.stamp(head, to, i, headers, i == segments-1)
		copy(head[atVnet:], frame[:linux.VnetHeaderLen+headers])
		piece := payload[i*size : min((i+1)*size, len(payload))]
		s.board(to, each+len(piece), part(head), part(piece))
	}
}

// stamp fills the datagram's header in, but for the vnet header.
func (s *udpSender) stamp(head []byte, to *peer, index, headers int, last bool) {
	*(*token)(head) = to.sending
	binary.BigEndian.PutUint16(head[atNumber:], s.number)
	binary.BigEndian.PutUint16(head[atIndex:], uint16(index))
	head[atHeaders], head[atFlags] = byte(headers), 0
	if last {
		head[atFlags] = flagLast
	}
}

// board puts a datagram of one or two parts on the train, or on a new one.
func (s *udpSender) board(to *peer, size int, first, second unix.Iovec) {
	alone := s.uncut[to.index] > 0
	if alone {
		s.uncut[to.index]--
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
		s.pending, s.failure = s.messages[sent:n], nil
		if err := s.raw.Write(s.write); err != nil {
			if s.halted.Load() {
				return nil
			}
			return fmt.Errorf("send to other nodes: %w", err)
		}
		sent = n - len(s.pending)
		if s.halted.Load() || sent == n {
			break
		}
		if err := s.giveWay(sent, s.failure); err != nil {
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
	address := &train.to.sockaddr[s.queue%len(train.to.sockaddr)]
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
		s.log.Debug("datagram not sent", "node", train.to.name, "bytes", train.size, "error", cause)
		if errors.Is(cause, unix.EBADF) {
			return fmt.Errorf("send to other nodes: %w", cause)
		}
		return nil
	}
	s.uncut[train.to.index] = uncutFor
	s.counts.uncut.Add(1)
	if !s.known[train.to.index] {
		s.known[train.to.index] = true
		s.log.Warn("the host does not cut packets to a node; the network between them is slower", "node", train.to.name, "bytes", train.size, "error", cause)
	}
	return s.sendSingly(i)
}

func (s *udpSender) sendSingly(i int) error {
	train := &s.meta[i]
	iov := train.firstIov
	for left := train.bytes; left > 0 && !s.halted.Load(); {
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
		s.pending, s.failure = s.single, nil
		if err := s.raw.Write(s.write); err != nil && !s.halted.Load() {
			return fmt.Errorf("send to other nodes: %w", err)
		}
		if s.failure != nil {
			s.counts.unsent.Add(1)
		}
		left -= size
		iov += parts
	}
	return nil
}

func addressLen(raw *unix.RawSockaddrInet6) uint32 {
	if raw.Family == unix.AF_INET {
		return unix.SizeofSockaddrInet4
	}
	return unix.SizeofSockaddrInet6
}
