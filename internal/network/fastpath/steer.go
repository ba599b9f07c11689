package fastpath

import (
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// leave leaves a connect to the kernel. For a Service, it first starts to connect the
// socket to the chosen pod, and the kernel only waits for the result. Otherwise
// kube-proxy's rules would choose again. That would break session affinity, and a pod
// without a Switch would receive too few connections.
func (o *outbound) leave(t *trap, socket int, d destination, why count) {
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	if err != nil || d.direct || !d.target.IsValid() {
		t.proceed(why)
		return
	}
	waits := flags&unix.O_NONBLOCK == 0
	if waits {
		t.record.note(stageSteering, 0)
		_ = unix.SetNonblock(socket, true)
	}
	errno := sock.ConnectTo(socket, d.target, d.ipv6)
	if waits {
		_ = unix.SetNonblock(socket, false)
	}
	if errno == 0 || errno == unix.EINPROGRESS {
		if err := o.sockets.registerSteered(t.from.pod, socket, d.asked, d.target, d.ipv6); err != nil {
			o.log.Warn("a program sees the address of a pod instead of the Service's", "err", err)
		}
	}
	if waits && errno == unix.EINPROGRESS {
		t.proceed(why)
		return
	}
	t.refuse(why, errno)
}
