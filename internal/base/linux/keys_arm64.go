package linux

import "golang.org/x/sys/unix"

// callsOnKeys returns the calls on keys of this architecture and of 32-bit
// programs.
func callsOnKeys() []keyCalls {
	return []keyCalls{{unix.AUDIT_ARCH_AARCH64, unix.SYS_ADD_KEY}, {unix.AUDIT_ARCH_ARM, 309}}
}
