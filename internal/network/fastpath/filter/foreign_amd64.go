package filter

import "golang.org/x/sys/unix"

const (
	// Arch is the architecture of the calls that the filter passes on.
	Arch = unix.AUDIT_ARCH_X86_64
	// FirstForeignCall is the first call of x32, which has the same architecture.
	FirstForeignCall = 0x40000000
)

// foreignCalls returns the calls of i386 that connect, listen, accept, or send with
// MSG_FASTOPEN, and the calls of io_uring.
func foreignCalls() []uint32 {
	const (
		socketcall, sendmmsg, connect, listen, accept4, sendto, sendmsg = 102, 345, 362, 363, 364, 369, 370
	)
	return append(ringCalls(), socketcall, sendmmsg, connect, listen, accept4, sendto, sendmsg)
}
