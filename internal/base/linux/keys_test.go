package linux

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// sessionKeyring returns the number of the thread's session keyring.
func sessionKeyring() (int, error) {
	return unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
}

func TestThreadHasItsOwnSessionKeyringAndThenNoKeys(t *testing.T) {
	if _, err := sessionKeyring(); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skip("the kernel has no keys, or a filter denies them: ", err)
	}
	before, err := sessionKeyring()
	if err != nil {
		t.Fatal(err)
	}
	OnNewThread(func() {
		if err := JoinSessionKeyring(); err != nil {
			t.Error(err)
		}
		if joined, err := sessionKeyring(); err != nil || joined == before {
			t.Errorf("session keyring %d, it was %d; %v", joined, before, err)
		}
		// The test need not be root.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			t.Error(err)
		}
		if err := DenyKeys(); err != nil {
			t.Error(err)
		}
		for _, call := range []uintptr{unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL} {
			if _, _, errno := unix.RawSyscall(call, 0, 0, 0); errno != unix.ENOSYS {
				t.Errorf("call %d: %v", call, errno)
			}
		}
		// As in a job inside a container with a filter.
		if err := JoinSessionKeyring(); err != nil {
			t.Error(err)
		}
	})
	if after, err := sessionKeyring(); err != nil || after != before {
		t.Errorf("session keyring of another thread %d, it was %d; %v", after, before, err)
	}
}

func TestFilterDeniesKeysOnAllArchitectures(t *testing.T) {
	var raw []bpf.RawInstruction
	for _, i := range keyFilter() {
		raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program has unknown instructions")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	denied := func(arch, number uint32) bool {
		// The BPF machine of x/net reads in network byte order.
		data := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, number), arch)
		action, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		if action != unix.SECCOMP_RET_ALLOW && action != unix.SECCOMP_RET_ERRNO|int(unix.ENOSYS) {
			t.Errorf("call %d of architecture %#x: action %#x", number, arch, action)
		}
		return action != unix.SECCOMP_RET_ALLOW
	}
	for _, c := range callsOnKeys() {
		for number := range c.first {
			if denied(c.arch, number) {
				t.Errorf("call %d of architecture %#x is denied", number, c.arch)
			}
		}
		for number := c.first; number < c.first+3; number++ {
			if !denied(c.arch, number) || !denied(c.arch, number|0x40000000) {
				t.Errorf("call %d of architecture %#x is allowed", number, c.arch)
			}
		}
		if denied(c.arch, c.first+3) {
			t.Errorf("call %d of architecture %#x is denied", c.first+3, c.arch)
		}
	}
	if denied(unix.AUDIT_ARCH_S390X, callsOnKeys()[0].first) {
		t.Error("a call of another architecture is denied")
	}
}
