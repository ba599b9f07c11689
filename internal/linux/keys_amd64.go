package linux

import "golang.org/x/sys/unix"

// callsOnKeys returns this architecture's calls on keys, x32's among them, and
// those of 32-bit programs.
func callsOnKeys() []keyCalls {
	return []keyCalls{{unix.AUDIT_ARCH_X86_64, unix.SYS_ADD_KEY}, {unix.AUDIT_ARCH_I386, 286}}
}
