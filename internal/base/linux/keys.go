package linux

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// JoinSessionKeyring gives the calling thread, and all that it starts, a new
// anonymous session keyring. The thread must be locked: each thread has its own
// credentials. It succeeds without effect where the kernel has no keys, or where
// a container's filter denies the call (EPERM) like all others on keys.
func JoinSessionKeyring() error {
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("make a session keyring: %w", err)
	}
	return nil
}

// DenyKeys answers ENOSYS to add_key, request_key and keyctl, for the calling
// thread and all that it starts, as a kernel without keys does. The thread must
// be locked, and be root in its user namespace.
//
// Another session keyring is not enough to keep a process from the user's keys:
// a key that grants its owner access, such as the user's keyring _uid.UID, takes
// requests by its number from every process of that uid, in whatever user
// namespace.
func DenyKeys() error {
	// Without SPEC_ALLOW (Linux 4.17) kernels before 5.16 switch off speculation
	// for every process with a filter, which costs more than the filter.
	if _, errno := setFilter(keyFilter(), unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW); errno != 0 {
		return fmt.Errorf("install the filter that denies calls on keys: %w", errno)
	}
	return nil
}

// keyCalls holds the number of an architecture's first call on keys; the other
// two follow it.
type keyCalls struct {
	arch, first uint32
}

// keyFilter returns the program of DenyKeys. It keeps to the instructions that
// Linux 5.11 evaluates in advance: a call that is always allowed then costs no
// run of the program.
func keyFilter() []unix.SockFilter {
	const (
		offsetNumber = 0 // of struct seccomp_data
		offsetArch   = 4
		x32          = 0x40000000
		calls        = 3
	)
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArch}}
	for _, c := range callsOnKeys() {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: c.arch, Jf: 6},
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNumber},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: c.first, Jf: 2},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: c.first + calls, Jt: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	}
	return append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}
