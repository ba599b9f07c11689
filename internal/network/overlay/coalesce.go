package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// device receives packets. write delivers one packet. Its error wraps errDeviceGone if
// no later packet can be delivered.
type device interface {
	write(vector []unix.Iovec) error
}

var (
	errMalformed = errors.New("malformed")
	errSpoofed   = errors.New("the source of the packet is not the peer's")
	errStray     = errors.New("the destination of the packet is not here")
)

// maxRun is the largest number of segments in a run. writev(2) accepts 1024
// parts.
const maxRun = 1000

// coalescer makes packets from authenticated datagrams of peers. A datagram's
// bytes must not change until flush.
type coalescer struct {
	out    device
	table  *atomic.Pointer[table]
	counts *counts

	// single reports whether the device accepts no UDP super-packets.
	single bool

	vector []unix.Iovec
	// head holds the vnet header and, for a coalesced packet, its IP and TCP
	// headers.
	head [linux.VnetHeaderLen + 256]byte

	// The current run of segments, which become one packet.
	from   *source
	number uint64 // number of the first datagram
	first  []byte // the first datagram; nil without a run
	// headers is the length of the inner packet's headers, in bytes. plain reports
	// whether the run consists of whole UDP packets, see coalesceudp.go.
	headers int
	plain   bool
	count   int  // segments
	length  int  // bytes of payload
	ended   bool // no segment can follow
}

// source is an origin of datagrams that can be coalesced: a socket of a peer, or
// a stream.
type source struct {
	peer *peer
	reassembly
}

func newCoalescer(out device, counts *counts) *coalescer {
	return &coalescer{out: out, counts: counts, vector: make([]unix.Iovec, 0, maxRun+1)}
}

// add accepts an authenticated datagram of at least wireLen bytes. It returns an
// error only if the device is gone.
func (g *coalescer) add(from *source, number uint64, datagram []byte) error {
	if g.first != nil && g.continues(from, number, datagram) {
		g.extend(datagram)
		return nil
	}
	if err := g.flush(); err != nil {
		return err
	}
	switch {
	case datagram[atFlags]&flagFragment != 0:
		frame, malformed := from.add(number, datagram)
		if malformed {
			g.counts.malformed.Add(1)
		}
		if frame == nil {
			return nil
		}
		return g.whole(from.peer, frame)
	case len(datagram) < wireLen+minIPv4Header:
		g.counts.malformed.Add(1)
		return nil
	case datagram[atHeaders] == 0:
		if headers := plainUDP(datagram); headers > 0 && !g.single {
			g.begin(from, number, datagram, headers, true)
			return nil
		}
		return g.whole(from.peer, datagram[atVnet:])
	}
	if !validSegment(datagram) {
		g.counts.malformed.Add(1)
		return nil
	}
	g.begin(from, number, datagram, int(datagram[atHeaders]), false)
	return nil
}

func (g *coalescer) begin(from *source, number uint64, datagram []byte, headers int, plain bool) {
	g.from, g.number, g.first, g.headers, g.plain = from, number, datagram, headers, plain
	g.count, g.length = 0, 0
	g.vector = append(g.vector[:0], unix.Iovec{})
	g.extend(datagram)
}

// whole delivers a packet that was not segmented.
func (g *coalescer) whole(from *peer, frame []byte) error {
	if len(frame) < linux.VnetHeaderLen+minIPv4Header || frame[vnetGSOType] != gsoNone && binary.NativeEndian.Uint16(frame[vnetGSOSize:]) == 0 {
		g.counts.malformed.Add(1)
		return nil
	}
	if !g.allowed(from, frame[linux.VnetHeaderLen:], 1) {
		return nil
	}
	// The wire header replaced hdr_len on the way. The kernel does not need it,
	// but segments a packet faster with it.
	headers, _ := cut(frame, maxPacket)
	binary.NativeEndian.PutUint16(frame[vnetHeaders:], uint16(headers))
	g.vector = append(g.vector[:0], part(frame))
	return g.deliver(1, len(frame)-linux.VnetHeaderLen)
}

// allowed reports whether packets with the headers of packet may be delivered for the
// peer. If not, it counts the given number of packets under the reason.
func (g *coalescer) allowed(from *peer, packet []byte, packets int) bool {
	switch err := g.table.Load().check(from, packet); {
	case err == nil:
		return true
	case errors.Is(err, errSpoofed):
		g.counts.spoofed.Add(uint64(packets))
	case errors.Is(err, errStray):
		g.counts.stray.Add(uint64(packets))
	default:
		g.counts.malformed.Add(uint64(packets))
	}
	return false
}

// validSegment reports whether a datagram, which is long enough for a packet, is
// a well-formed segment.
func validSegment(datagram []byte) bool {
	vnet := datagram[atVnet:wireLen]
	packet := datagram[wireLen:]
	headers, size := cut(datagram[atVnet:], maxPacket)
	payload := len(packet) - headers
	if size == 0 || headers != int(datagram[atHeaders]) || payload <= 0 || payload > size {
		return false
	}
	if datagram[atFlags]&flagLast == 0 && payload != size {
		return false
	}
	index := int(binary.BigEndian.Uint16(datagram[atIndex:]))
	return index*size+payload+headers <= maxPacket && vnet[vnetFlags] == needsChecksum
}

// continues reports whether a datagram is the next of the run.
func (g *coalescer) continues(from *source, number uint64, datagram []byte) bool {
	if g.plain {
		return g.joins(from, datagram)
	}
	headers := g.headers
	if g.single && g.first[atVnet+vnetGSOType] == gsoUDP {
		return false
	}
	if g.ended || from != g.from || g.count == maxRun || len(datagram) <= wireLen+headers || number != g.number+uint64(g.count) {
		return false
	}
	index := binary.BigEndian.Uint16(datagram[atIndex:])
	if index != binary.BigEndian.Uint16(g.first[atIndex:])+uint16(g.count) {
		return false
	}
	// All headers are equal except for flagLast.
	return datagram[atHeaders] == byte(headers) && datagram[atFlags]&^flagLast == 0 &&
		bytes.Equal(datagram[atVnet:atHeaders], g.first[atVnet:atHeaders]) &&
		bytes.Equal(datagram[atFlags+1:wireLen+headers], g.first[atFlags+1:wireLen+headers]) &&
		validSegment(datagram)
}

func (g *coalescer) extend(datagram []byte) {
	payload := datagram[wireLen+g.headers:]
	g.vector = append(g.vector, part(payload))
	g.count++
	g.length += len(payload)
	if g.plain {
		g.ended = len(datagram) < len(g.first)
	} else {
		g.ended = datagram[atFlags]&flagLast != 0
	}
}

// flush delivers the run as one packet. It returns an error only if the device is gone.
func (g *coalescer) flush() error {
	if g.first == nil {
		return nil
	}
	head := g.head[:copy(g.head[:], g.first[atVnet:wireLen+g.headers])]
	index := int(binary.BigEndian.Uint16(g.first[atIndex:]))
	from, first := g.from, g.first
	g.from, g.first = nil, nil
	packets := 1
	if g.plain {
		if packets = g.count; packets == 1 {
			return g.whole(from.peer, first[atVnet:])
		}
		head[vnetGSOType] = gsoUDP
		binary.NativeEndian.PutUint16(head[vnetGSOSize:], uint16(len(first)-wireLen-g.headers))
	}
	if !g.allowed(from.peer, head[linux.VnetHeaderLen:], packets) {
		return nil
	}
	restoreHeaders(head, index, g.count, g.length, g.ended)
	g.vector[0] = part(head)
	return g.deliver(packets, g.headers+g.length)
}

// restoreHeaders turns the headers of a segmented packet into the headers of a part of
// it. The part has count segments with length bytes of payload, and begins with the
// segment of index first. last reports whether the part ends the packet.
func restoreHeaders(head []byte, first, count, length int, last bool) {
	packet := head[linux.VnetHeaderLen:]
	start := int(binary.NativeEndian.Uint16(head[vnetSumStart:]))
	size := int(binary.NativeEndian.Uint16(head[vnetGSOSize:]))
	transport := packet[start:]
	binary.NativeEndian.PutUint16(head[vnetHeaders:], uint16(len(packet)))
	isTCP := head[vnetGSOType] != gsoUDP
	protocol, sumOffset := uint32(protocolTCP), tcpSumOffset
	if !isTCP {
		protocol, sumOffset = protocolUDP, udpSumOffset
	}
	if count == 1 {
		head[vnetGSOType] = gsoNone
		binary.NativeEndian.PutUint16(head[vnetGSOSize:], 0)
	}
	switch {
	case isTCP && first > 0:
		// The first segment carries the reaction to congestion.
		head[vnetGSOType] &^= gsoECN
		transport[tcpFlagsOffset] &^= tcpCWR
		binary.BigEndian.PutUint32(transport[4:], binary.BigEndian.Uint32(transport[4:])+uint32(first*size))
	case !isTCP:
		binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)+length))
	}
	if isTCP && !last {
		transport[tcpFlagsOffset] &^= tcpFIN | tcpPSH
	}
	var pseudo uint32
	if packet[0]>>4 == 4 {
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)+length))
		binary.BigEndian.PutUint16(packet[4:], binary.BigEndian.Uint16(packet[4:])+uint16(first))
		binary.BigEndian.PutUint16(packet[10:], 0)
		binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:start], 0)))
		pseudo = sum(packet[12:20], protocol)
	} else {
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)+length-ipv6Header))
		pseudo = sum(packet[8:40], protocol)
	}
	// The kernel completes the checksum if anything needs it.
	binary.BigEndian.PutUint16(transport[sumOffset:], fold(pseudo+uint32(len(transport)+length)))
}

// deliver writes the vector to the device and counts it as the given number of
// packets. It returns an error only if the device is gone.
func (g *coalescer) deliver(packets, length int) error {
	err := g.out.write(g.vector)
	switch {
	case err == nil:
		g.counts.receivedPackets.Add(uint64(packets))
		g.counts.receivedBytes.Add(uint64(length))
		return nil
	case errors.Is(err, errDeviceGone):
		return err
	}
	g.counts.refused.Add(uint64(packets))
	return nil
}

func part(b []byte) unix.Iovec {
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	return iov
}
