package linux

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// ownershipCalls returns the calls that only this architecture has.
func ownershipCalls() []int { return []int{unix.SYS_CHOWN, unix.SYS_LCHOWN} }
