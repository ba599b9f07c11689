package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FakeOwnership makes every system call that changes the owner of a file or
// the identity of a process succeed without effect, for this process and all
// that it starts. In a user namespace with a single id there is only one owner
// that anything could have; images and programs that ask for others would fail
// with EINVAL, although most of them work as well without.
//
// The process must be user 0 of its user namespace.
func FakeOwnership() error {
	calls := append(ownershipCalls(), unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
		unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETGROUPS,
		unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETFSUID, unix.SYS_SETFSGID)
	const (
		offsetNumber = 0 // of struct seccomp_data
		offsetArch   = 4
	)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArch},
		// Allow every call of other architectures (32-bit programs).
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNumber},
	}
	for _, call := range calls {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(call), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	// Go runs on several threads; all of them get the filter at once.
	if _, errno := setFilter(program, unix.SECCOMP_FILTER_FLAG_TSYNC); errno != 0 {
		return fmt.Errorf("install the filter that ignores changes of ownership: %w", errno)
	}
	return nil
}
