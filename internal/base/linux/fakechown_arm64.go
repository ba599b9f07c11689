package linux

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// ownershipCalls returns the calls that only this architecture has.
func ownershipCalls() []int { return nil }
