package fastpath

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	errno := steer(socket, d)
	if waits {
		_ = unix.SetNonblock(socket, false)
	}
	if errno == 0 || errno == unix.EINPROGRESS {
		if err := s.knowSteered(t.from.pod, socket, d); err != nil {
			s.config.Log.Warn("a program is told the address of a pod in place of a Service's", "err", err)
		}
	}
	if waits && errno == unix.EINPROGRESS {
		t.proceed(why)
		return
	}
	t.refuse(why, errno)
}

// steer begins to connect a pod's own socket to the target.
func steer(socket int, d destination) unix.Errno {
	if !d.mapped {
		address := rawAddress(d.target)
		return rawErrno(rawConnect(socket, (*unix.RawSockaddr)(unsafe.Pointer(&address))))
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], d.target.Port())
	address := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: binary.NativeEndian.Uint16(port[:]), Addr: d.target.Addr().As16()}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(socket), uintptr(unsafe.Pointer(&address)), unix.SizeofSockaddrInet6)
	return errno
}

func rawErrno(err error) unix.Errno {
	errno, _ := err.(unix.Errno)
	return errno
}
