package linux

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// SocketDiag finds TCP sockets of a network namespace (sock_diag(7)).
type SocketDiag struct{ fd int }

// OpenSocketDiag returns a SocketDiag for the current network namespace.
func OpenSocketDiag() (*SocketDiag, error) {
	fd, err := SocketDiagSocket()
	return &SocketDiag{fd}, err
}

// NewSocketDiag returns a SocketDiag for the network namespace where the socket was made.
func NewSocketDiag(socket int) *SocketDiag { return &SocketDiag{socket} }

// SocketDiagSocket makes a socket for NewSocketDiag.
func SocketDiagSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return -1, fmt.Errorf("open socket diagnostics: %w", err)
	}
	return fd, nil
}

func (d *SocketDiag) Close() { unix.Close(d.fd) }

// Inode returns the inode of the connection with these ends and the cookie
// (SO_COOKIE), as in /proc/PID/fd, or 0 if no process has it open.
func (d *SocketDiag) Inode(local, peer netip.AddrPort, cookie uint64) (uint32, error) {
	found, err := d.find(local, peer, cookie)
	return found.inode, err
}

// Owner returns the uid of the socket at the end local of a connection. open reports whether
// a process has it open. The kernel finds the socket by a hash, so the time does not grow
// with the number of sockets.
func (d *SocketDiag) Owner(local, peer netip.AddrPort) (uid uint32, open bool, err error) {
	const (
		anyCookie = ^uint64(0)
		listening = 10 // TCP_LISTEN: the kernel answers with a listener where there is no connection
	)
	found, err := d.find(local, peer, anyCookie)
	return found.uid, found.inode != 0 && found.state != listening, err
}

// diagnosed holds what the kernel answers about a socket.
type diagnosed struct {
	state      byte
	uid, inode uint32
}

// find returns the zero value if there is no such socket.
func (d *SocketDiag) find(local, peer netip.AddrPort, cookie uint64) (diagnosed, error) {
	const (
		byFamily     = 20 // SOCK_DIAG_BY_FAMILY
		requestLen   = 56 // struct inet_diag_req_v2
		stateOffset  = 1  // in struct inet_diag_msg
		uidOffset    = 64
		inodeOffset  = 68
		anyState     = ^uint32(0)
		answerLength = 72
	)
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+requestLen)
	b = binary.NativeEndian.AppendUint16(b, byFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...)
	family := byte(unix.AF_INET)
	if peer.Addr().Is6() {
		family = unix.AF_INET6
	}
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, anyState)
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, peer.Port())
	for _, end := range []netip.Addr{local.Addr(), peer.Addr()} {
		var field [16]byte
		copy(field[:], end.AsSlice())
		b = append(b, field[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0) // any interface
	b = binary.NativeEndian.AppendUint32(b, uint32(cookie))
	b = binary.NativeEndian.AppendUint32(b, uint32(cookie>>32))
	if err := unix.Sendto(d.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return diagnosed{}, fmt.Errorf("ask for the socket from %s to %s: %w", local, peer, err)
	}
	answer := make([]byte, 512)
	n, _, err := unix.Recvfrom(d.fd, answer, 0)
	if err != nil {
		return diagnosed{}, fmt.Errorf("ask for the socket from %s to %s: %w", local, peer, err)
	}
	if n < unix.SizeofNlMsghdr+4 {
		return diagnosed{}, fmt.Errorf("ask for the socket from %s to %s: the answer has only %d bytes", local, peer, n)
	}
	body := answer[unix.SizeofNlMsghdr:n]
	if binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno {
		case unix.ENOENT, unix.ESTALE:
			return diagnosed{}, nil
		default:
			return diagnosed{}, fmt.Errorf("ask for the socket from %s to %s: %w", local, peer, errno)
		}
	}
	if len(body) < answerLength {
		return diagnosed{}, fmt.Errorf("read about the socket from %s to %s: %w", local, peer, unix.EBADMSG)
	}
	return diagnosed{
		state: body[stateOffset],
		uid:   binary.NativeEndian.Uint32(body[uidOffset:]),
		inode: binary.NativeEndian.Uint32(body[inodeOffset:]),
	}, nil
}
