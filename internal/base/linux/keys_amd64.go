package linux

import "golang.org/x/sys/unix"

// callsOnKeys returns the calls on keys of this architecture, including x32, and
// of 32-bit programs.
func callsOnKeys() []keyCalls {
	return []keyCalls{{unix.AUDIT_ARCH_X86_64, unix.SYS_ADD_KEY}, {unix.AUDIT_ARCH_I386, 286}}
}
