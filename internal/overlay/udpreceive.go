package overlay

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// receiveBatch is how many messages one recvmmsg(2) takes. Each may be as
// large as UDP_GRO makes it. Where the host's interface does not join them, a
// packet of 64 KiB is 46 messages at an MTU of 1500, and should be one again.
// A buffer costs memory once it was filled.
const receiveBatch = 48

// udpReceiver is the receiving half of a queue.
type udpReceiver struct {
	raw      syscall.RawConn
	counts   *counts
	halted   *atomic.Bool
	tables   *atomic.Pointer[table]
	buffers  []byte
	vectors  []unix.Iovec
	names    []unix.RawSockaddrInet6
	controls [][32]byte
	messages []linux.Message
	failure  error
}

func newUDPReceiver(raw syscall.RawConn, tables *atomic.Pointer[table], counts *counts, halted *atomic.Bool) *udpReceiver {
	r := &udpReceiver{
		raw: raw, counts: counts, halted: halted, tables: tables,
		buffers:  make([]byte, receiveBatch*(maxPacket+1)),
		vectors:  make([]unix.Iovec, receiveBatch),
		names:    make([]unix.RawSockaddrInet6, receiveBatch),
		controls: make([][32]byte, receiveBatch),
		messages: make([]linux.Message, receiveBatch),
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

func (r *udpReceiver) receive(into *gluer) error {
	err := r.raw.Read(func(fd uintptr) bool {
		for !r.halted.Load() {
			for i := range r.messages {
				r.messages[i].Namelen = unix.SizeofSockaddrInet6
				r.messages[i].SetControllen(len(r.controls[i]))
			}
			n, err := linux.ReceiveMessages(int(fd), r.messages)
			switch {
			case err == unix.EAGAIN:
				return false
			case err == unix.EINTR || isRemoteError(err):
				continue
			case err != nil:
				r.failure = err
				return true
			}
			if r.failure = r.unpack(n, into); r.failure != nil {
				return true
			}
		}
		return true
	})
	switch {
	case r.halted.Load():
		return nil
	case r.failure != nil:
		err = r.failure
	}
	return fmt.Errorf("receive from other nodes: %w", err)
}

// isRemoteError tells whether an error is only what an ICMP message said about
// a datagram that was sent.
func isRemoteError(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EMSGSIZE, unix.EHOSTDOWN, unix.EPROTO:
		return true
	}
	return false
}

func (r *udpReceiver) unpack(n int, into *gluer) error {
	t := r.tables.Load()
	into.table = t
	for i := range n {
		message := &r.messages[i]
		data := r.buffer(i)[:message.Length]
		from := t.bySource[sourceOf(&r.names[i])]
		size := len(data)
		if cut := groSize(r.controls[i][:message.Controllen]); cut > 0 {
			size = cut
		}
		if from == nil || len(data) == 0 {
			r.counts.foreign.Add(uint64(max(1, (len(data)+size-1)/max(size, 1))))
			continue
		}
		for len(data) > 0 {
			datagram := data[:min(size, len(data))]
			data = data[len(datagram):]
			if len(datagram) < tokenLen || token(datagram[:tokenLen]) != from.awaited {
				r.counts.foreign.Add(1)
				continue
			}
			if err := into.add(from, datagram); err != nil {
				return err
			}
		}
	}
	return into.flush()
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
