package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"berth.dev/berth/internal/base/linux"
)

// link is the stack's end of the TUN device. The stack's own endpoint for file
// descriptors offers segmentation and checksum offload on sockets only, so
// link reads and writes the virtio header itself. So a TCP packet may be as large as
// 64 KiB, whatever the MTU of the pod, and no checksum is computed over its payload.
type link struct {
	file *os.File
	fd   int
	mtu  uint32
	vnet bool
	// inspect receives each packet before the stack, which does not see the packet if
	// inspect returns true.
	inspect    func(protocol tcpip.NetworkProtocolNumber, packet *stack.PacketBuffer) bool
	dropped    *atomic.Uint64
	dispatcher atomic.Pointer[stack.NetworkDispatcher]

	// open is held for reading during each write, so that shut cannot close the
	// descriptor. Another file may soon have its number.
	open     sync.RWMutex
	closed   bool
	deafened atomic.Bool // deafen was called
}

// pieces holds the sizes of the buffers that a packet is read into, in bytes. Small
// packets must not hold a large buffer, since the stack queues them. Every header fits
// into the first piece.
var pieces = [...]int{256, 2048, 8192, 1 << 16}

const (
	needsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoTCP4       = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	gsoTCP6       = 4 // VIRTIO_NET_HDR_GSO_TCPV6
)

// newLink duplicates the descriptor of tun, so its owner may close it.
func newLink(tun *os.File, mtu int, dropped *atomic.Uint64) (*link, error) {
	raw, err := tun.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use %s as egress device: %w", tun.Name(), err)
	}
	l := &link{mtu: uint32(mtu), dropped: dropped}
	var failure error
	err = raw.Control(func(fd uintptr) {
		if l.vnet, failure = linux.TUNHasVnetHeader(int(fd)); failure != nil {
			return
		}
		l.fd, failure = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(err, failure); err != nil {
		return nil, fmt.Errorf("use %s as egress device: %w", tun.Name(), err)
	}
	if err := unix.SetNonblock(l.fd, true); err != nil {
		unix.Close(l.fd)
		return nil, fmt.Errorf("make %s non-blocking: %w", tun.Name(), err)
	}
	l.file = os.NewFile(uintptr(l.fd), tun.Name())
	return l, nil
}

// read delivers packets until deafen is called, and then returns nil. It returns an error
// if the device is gone or reading fails.
func (l *link) read() error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("read egress device: %w", err)
	}
	var failure error
	reader := packetReader{link: l}
	defer reader.release()
	err = raw.Read(func(fd uintptr) bool {
		for {
			failure = reader.next(int(fd))
			if failure != nil {
				return !errors.Is(failure, unix.EAGAIN)
			}
			if l.deafened.Load() {
				return true
			}
		}
	})
	switch {
	case l.deafened.Load():
		return nil
	case errors.Is(failure, unix.EBADFD), errors.Is(failure, io.EOF):
		return fmt.Errorf("read egress device: the device was removed, or its network namespace ended: %w", failure)
	case err != nil:
		return fmt.Errorf("read egress device: %w", err)
	}
	return fmt.Errorf("read egress device: %w", failure)
}

// packetReader holds the buffers that the next packet is read into.
type packetReader struct {
	link  *link
	vnet  [linux.VnetHeaderLen]byte
	views [len(pieces)]*buffer.View
	iov   [len(pieces) + 1][]byte
}

// next reads one packet and delivers it. It returns EAGAIN if there is none.
func (r *packetReader) next(fd int) error {
	iov := r.iov[:0]
	if r.link.vnet {
		iov = append(iov, r.vnet[:])
	}
	for i, size := range pieces {
		if r.views[i] == nil {
			r.views[i] = buffer.NewViewSize(size)
		}
		iov = append(iov, r.views[i].AsSlice())
	}
	n, err := unix.Readv(fd, iov)
	switch {
	case err == unix.EINTR:
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	if r.link.vnet {
		n -= len(r.vnet)
	}
	if n <= 0 {
		r.link.dropped.Add(1)
		return nil
	}
	r.link.deliver(r.take(n))
	return nil
}

// take makes a packet of the first n bytes that were read.
func (r *packetReader) take(n int) *stack.PacketBuffer {
	var payload buffer.Buffer
	for i := 0; n > 0 && i < len(r.views); i++ {
		view := r.views[i]
		r.views[i] = nil
		view.CapLength(min(n, pieces[i]))
		n -= view.Size()
		if err := payload.Append(view); err != nil {
			view.Release()
			break
		}
	}
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: payload})
}

func (r *packetReader) release() {
	for _, view := range r.views {
		if view != nil {
			view.Release()
		}
	}
}

func (l *link) deliver(packet *stack.PacketBuffer) {
	defer packet.DecRef()
	dispatcher := l.dispatcher.Load()
	first, ok := packet.Data().PullUp(1)
	if !ok || dispatcher == nil {
		l.dropped.Add(1)
		return
	}
	var protocol tcpip.NetworkProtocolNumber
	switch header.IPVersion(first) {
	case header.IPv4Version:
		protocol = header.IPv4ProtocolNumber
	case header.IPv6Version:
		protocol = header.IPv6ProtocolNumber
	default:
		l.dropped.Add(1)
		return
	}
	if l.inspect(protocol, packet) {
		return
	}
	packet.NetworkProtocolNumber = protocol
	(*dispatcher).DeliverNetworkPacket(protocol, packet)
}

// WritePackets writes to the device. It may be called by many goroutines.
func (l *link) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	l.open.RLock()
	defer l.open.RUnlock()
	if l.closed {
		return 0, &tcpip.ErrClosedForSend{}
	}
	for i, packet := range packets.AsSlice() {
		if err := l.write(packet); err != nil {
			l.dropped.Add(1)
			return i, err
		}
	}
	return packets.Len(), nil
}

func (l *link) write(packet *stack.PacketBuffer) tcpip.Error {
	var vnet [linux.VnetHeaderLen]byte
	slices := packet.AsSlices()
	iov := make([][]byte, 0, len(slices)+1)
	if l.vnet {
		vnetHeader(&vnet, packet)
		iov = append(iov, vnet[:])
	}
	for _, slice := range slices {
		if len(slice) > 0 {
			iov = append(iov, slice)
		}
	}
	for {
		_, err := unix.Writev(l.fd, iov)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS:
			return &tcpip.ErrNoBufferSpace{}
		default:
			return &tcpip.ErrAborted{}
		}
	}
}

// vnetHeader tells the kernel what is incomplete in a packet of the stack: its TCP checksum
// covers only the pseudo header, and the packet may be several segments. For a receiver on
// this host, the kernel neither completes the checksum nor segments the packet.
func vnetHeader(vnet *[linux.VnetHeaderLen]byte, packet *stack.PacketBuffer) {
	gso := packet.GSOOptions
	if gso.Type == stack.GSONone || !gso.NeedsCsum {
		return
	}
	vnet[0] = needsChecksum
	binary.NativeEndian.PutUint16(vnet[2:], uint16(packet.HeaderSize()))
	binary.NativeEndian.PutUint16(vnet[6:], gso.L3HdrLen)
	binary.NativeEndian.PutUint16(vnet[8:], gso.CsumOffset)
	if packet.Data().Size() > int(gso.MSS) {
		vnet[1] = gsoTCP4
		if gso.Type == stack.GSOTCPv6 {
			vnet[1] = gsoTCP6
		}
		binary.NativeEndian.PutUint16(vnet[4:], gso.MSS)
	}
}

// deafen ends read; the link can still be written to.
func (l *link) deafen() {
	l.deafened.Store(true)
	_ = l.file.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
}

// shut ends read and closes the device; later writes fail. It can be called twice.
func (l *link) shut() {
	l.deafen()
	l.open.Lock()
	defer l.open.Unlock()
	if !l.closed {
		l.closed = true
		l.file.Close()
	}
}

// The other methods implement stack.LinkEndpoint.

func (l *link) MTU() uint32                             { return l.mtu }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return 0 }
func (l *link) LinkAddress() tcpip.LinkAddress          { return "" }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *link) AddHeader(*stack.PacketBuffer)           {}
func (l *link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
func (l *link) IsAttached() bool                        { return l.dispatcher.Load() != nil }
func (l *link) GSOMaxSize() uint32 {
	return 1<<16 - 1 - header.IPv6MinimumSize - header.TCPHeaderMaximumSize
}

// Attach sets the receiver of packets. The stack passes nil when it no longer uses the
// link.
func (l *link) Attach(dispatcher stack.NetworkDispatcher) {
	if dispatcher == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&dispatcher)
}

// Capabilities makes the stack skip the checksums of packets from a device with a virtio
// header. These packets never left this machine, and most have no complete checksum yet.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	if l.vnet {
		return stack.CapabilityRXChecksumOffload
	}
	return stack.CapabilityNone
}

func (l *link) SupportedGSO() stack.SupportedGSO {
	if l.vnet {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}
