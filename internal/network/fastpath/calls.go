package fastpath

import (
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/filter"
)

// handle dispatches a call.
func (s *Switch) handle(t *trap) {
	if t.call().Arch != filter.Arch || uint32(t.call().Call) >= filter.FirstForeignCall {
		s.foreign(t)
		return
	}
	switch t.call().Call {
	case unix.SYS_CONNECT:
		s.outbound.connect(t)
	case unix.SYS_ACCEPT, unix.SYS_ACCEPT4:
		s.listeners.accept(t)
	case unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME:
		s.sockets.name(t)
	case unix.SYS_LISTEN:
		s.sockets.listen(t)
	case unix.SYS_SECCOMP:
		s.nested(t)
	case unix.SYS_SYSINFO:
		t.sysinfo()
	default:
		t.pass()
	}
}

// nested logs a filter with a listener, which the kernel is about to refuse. A call
// without a program (a null pointer) only probes for the feature.
func (s *Switch) nested(t *trap) {
	if t.call().Args[2] != 0 {
		s.counters.add(countNested)
		s.log.Warn("a program of a pod asks for a seccomp listener (as container engines and bypass4netns do), but already has that of the fast path; annotate the pod with berth.dev/fast-path=off and berth.dev/sysinfo=off", "pod", t.from.pod.address)
	}
	t.pass()
}

// foreign refuses the calls of a program of another architecture, whose arguments are
// packed differently.
func (s *Switch) foreign(t *trap) {
	if !t.from.pod.foreign.Swap(true) {
		s.log.Warn("a 32-bit program of a pod uses sockets, which the fast path does not support; annotate the pod with berth.dev/fast-path=off", "pod", t.from.pod.address)
	}
	t.refuse(countForeign, unix.ENOSYS)
}
