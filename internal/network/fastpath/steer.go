package fastpath

import "golang.org/x/sys/unix"

// leave leaves a connect to the kernel. Of a Service's pods, kube-proxy's rules
// would choose again, so that those that cannot be switched got a share of their
// share, and session affinity were broken: the socket begins to connect to the
// pod that was chosen, and the kernel, which has the call wait for that, need not
// choose.
func (s *Switch) leave(t *trap, socket int, d destination, why count) {
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
	errno := connectTo(socket, d.target, d.ipv6)
	if waits {
		_ = unix.SetNonblock(socket, false)
	}
	if errno == 0 || errno == unix.EINPROGRESS {
		if err := s.registerSteered(t.from.pod, socket, d); err != nil {
			s.config.Log.Warn("a program is told the address of a pod in place of a Service's", "err", err)
		}
	}
	if waits && errno == unix.EINPROGRESS {
		t.proceed(why)
		return
	}
	t.refuse(why, errno)
}
