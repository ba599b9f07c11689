package fastpath

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// readAddress reads a socket address from the caller's memory, as connect(2) would.
func (t *trap) readAddress(at uint64, length int) ([]byte, unix.Errno) {
	const storage = 128 // sizeof(struct sockaddr_storage)
	if length < 0 || length > storage {
		return nil, unix.EINVAL
	}
	b := make([]byte, length)
	if err := linux.ReadMemory(t.tid(), at, b); err != nil {
		return nil, unix.EFAULT
	}
	return b, 0
}

// acceptFlags returns the flags of accept4, and 0 for accept.
func (t *trap) acceptFlags() int {
	if t.call().Call == unix.SYS_ACCEPT4 {
		return t.argument(3)
	}
	return 0
}

// writeAddress writes an address and its length into the caller's memory. Unlike accept(2),
// it writes the length of what fits into the caller's buffer. It returns EINTR if the caller
// was interrupted.
func (t *trap) writeAddress(a netip.AddrPort, ipv6 bool, at, lengthAt uint64) unix.Errno {
	if at == 0 {
		return 0
	}
	var length [4]byte
	if err := linux.ReadMemory(t.tid(), lengthAt, length[:]); err != nil {
		return unix.EFAULT
	}
	space := int(int32(binary.NativeEndian.Uint32(length[:])))
	if space < 0 {
		return unix.EINVAL
	}
	b := sock.Raw(a, ipv6)
	b = b[:min(len(b), space)]
	// The call may be repeated, which reads this length as the size of the buffer. So it must
	// not exceed that size, as it would from accept(2) if the address was truncated.
	binary.NativeEndian.PutUint32(length[:], uint32(len(b)))
	// A caller that was interrupted may use its memory otherwise by now.
	if !t.waits() {
		return unix.EINTR
	}
	if err := linux.WriteMemory(t.tid(), at, b, lengthAt, length[:]); err != nil {
		return unix.EFAULT
	}
	return 0
}
