package fastpath

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/filter"
)

// TestProgramWithItsOwnFilters has a program filter itself as runtimes do
// with their default profile, and ask for a listener as container engines do.
func TestProgramWithItsOwnFilters(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	serving := server.serve("serve", "5000")
	expect(t, client.run("nested", server.at(5000)), client.address, server.address, "switched")
	serving.wait()
	client.counts(t, countNested, 2)
}

// nested ADDRESS: cannot have a listener, has a filter that refuses listen and
// bind, and connects.
func nested(args []string) error {
	// To ask whether there are listeners is no wish for one.
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0); errno != unix.EFAULT {
		return fmt.Errorf("ask for listeners: %w, not EFAULT", errno)
	}
	var p filter.Program
	p.Load(filter.OffsetCall)
	p.When(unix.SYS_LISTEN, filter.Refuse(unix.EPERM))
	p.When(unix.SYS_BIND, filter.Refuse(unix.EACCES))
	p.End(unix.SECCOMP_RET_ALLOW)
	if _, err := linux.InstallFilter(p); !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("ask for a second listener: %w, not EBUSY", err)
	}
	if err := Check(); !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("a cluster inside of the pod would have a Switch: %w, not EBUSY", err)
	}
	own := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&own))); errno != 0 {
		return fmt.Errorf("install a filter: %w", errno)
	}
	fd, err := newSocket(unix.AF_INET, 0)
	if err != nil {
		return err
	}
	if err := failed(unix.Bind(fd, sockaddr("0.0.0.0:0", unix.AF_INET)), unix.EACCES); err != nil {
		return fmt.Errorf("bind, which the filter refuses: %w", err)
	}
	// A refusal counts more than the Switch's question.
	if err := failed(unix.Listen(fd, 1), unix.EPERM); err != nil {
		return fmt.Errorf("listen, which the filter refuses: %w", err)
	}
	return ask(args)
}
