package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// device is where packets are delivered: each is the vector's bytes.
type device interface {
	write(vector []unix.Iovec) error
}

var (
	errMalformed = errors.New("malformed")
	errSpoofed   = errors.New("the source of the packet is not the peer's")
	errStray     = errors.New("the destination of the packet is not here")
)

// maxRun is how many segments are glued at most; writev(2) takes 1024 parts.
const maxRun = 1000

// gluer makes packets of datagrams that are known to come from a peer. Their
// bytes must stay as they are until flush.
type gluer struct {
	out    device
	table  *table
	counts *counts

	// single says that the device takes no super-packets of UDP.
	single bool

	vector []unix.Iovec
	// head is the vnet header and, for a glued packet, IP and TCP headers.
	head [linux.VnetHeaderLen + 256]byte

	// The run of segments that are to be one packet.
	from   *source
	number uint64 // of the first datagram
	first  []byte // the first datagram; nil when there is no run
	// headers is their length in the inner packet. Of a run of whole packets,
	// which join.go finds, plain is true.
	headers int
	plain   bool
	count   int
	length  int  // of the payload
	ended   bool // nothing can follow
}

// source is where datagrams come from that can belong together: a socket of a
// peer, or a stream.
type source struct {
	peer *peer
	whole
}

func newGluer(out device, counts *counts) *gluer {
	return &gluer{out: out, counts: counts, vector: make([]unix.Iovec, 0, maxRun+1)}
}

// add takes a datagram that is the peer's, of at least wireLen bytes. It
// returns an error that ends the device only.
func (g *gluer) add(from *source, number uint64, datagram []byte) error {
	if g.first != nil && g.continues(from, number, datagram) {
		g.extend(datagram)
		return nil
	}
	if err := g.flush(); err != nil {
		return err
	}
	switch {
	case datagram[atFlags]&flagPiece != 0:
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

func (g *gluer) begin(from *source, number uint64, datagram []byte, headers int, plain bool) {
	g.from, g.number, g.first, g.headers, g.plain = from, number, datagram, headers, plain
	g.count, g.length = 0, 0
	g.vector = append(g.vector[:0], unix.Iovec{})
	g.extend(datagram)
}

// whole delivers a packet that was not cut.
func (g *gluer) whole(from *peer, frame []byte) error {
	if len(frame) < linux.VnetHeaderLen+minIPv4Header || frame[vnetGSOType] != gsoNone && binary.NativeEndian.Uint16(frame[vnetGSOSize:]) == 0 {
		g.counts.malformed.Add(1)
		return nil
	}
	if !g.allowed(from, frame[linux.VnetHeaderLen:], 1) {
		return nil
	}
	// Its place was taken on the way. The kernel can do without, but a packet
	// to be cut is faster with it.
	headers, _ := cut(frame, maxPacket)
	binary.NativeEndian.PutUint16(frame[vnetHeaders:], uint16(headers))
	g.vector = append(g.vector[:0], part(frame))
	return g.deliver(1, len(frame)-linux.VnetHeaderLen)
}

// allowed tells whether so many packets may be delivered that have the same
// addresses.
func (g *gluer) allowed(from *peer, packet []byte, packets int) bool {
	switch err := g.table.check(from, packet); {
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

// validSegment tells whether a datagram that is long enough for a packet is a
// segment of one.
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

// continues tells whether a datagram follows the run.
func (g *gluer) continues(from *source, number uint64, datagram []byte) bool {
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
	// The vnet header and the packet's headers are the same but for the flag of
	// the last one.
	return datagram[atHeaders] == byte(headers) && datagram[atFlags]&^flagLast == 0 &&
		bytes.Equal(datagram[atVnet:atHeaders], g.first[atVnet:atHeaders]) &&
		bytes.Equal(datagram[atFlags+1:wireLen+headers], g.first[atFlags+1:wireLen+headers]) &&
		validSegment(datagram)
}

func (g *gluer) extend(datagram []byte) {
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

// flush delivers the run.
func (g *gluer) flush() error {
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

// restoreHeaders makes of the headers of a packet that was cut those of a part
// of it: count segments from the one with the index first, of length bytes.
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
		// Congestion was answered in the first segment.
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
	// The kernel adds the rest, or leaves it where nobody looks.
	binary.BigEndian.PutUint16(transport[sumOffset:], fold(pseudo+uint32(len(transport)+length)))
}

// deliver writes the vector, which counts as so many packets.
func (g *gluer) deliver(packets, length int) error {
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
