package filter

import "golang.org/x/sys/unix"

const (
	// Arch is the architecture of the calls that the filter passes on.
	Arch = unix.AUDIT_ARCH_AARCH64
	// FirstForeignCall is beyond all calls of this architecture.
	FirstForeignCall = 0x40000000
)

// foreignCalls returns the calls of 32-bit ARM that connect, listen, accept, or send with
// MSG_FASTOPEN, and the calls of io_uring.
func foreignCalls() []uint32 {
	const (
		socketcall, connect, listen, accept, sendto, sendmsg, accept4, sendmmsg = 102, 283, 284, 285, 290, 296, 366, 374
	)
	return append(ringCalls(), socketcall, connect, listen, accept, sendto, sendmsg, accept4, sendmmsg)
}
