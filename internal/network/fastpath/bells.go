package fastpath

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A bell is a TCP socket in a pod's network namespace. When it connects to the pod's
// listener, the listener becomes ready for programs that wait in poll, epoll or
// accept. The program that accepts the bell receives the parked connection instead.

// takeBell returns a socket of the pod's namespace. Each family has its own, because
// the kernel goes on sending by IPv4 on a socket that was connected by IPv4.
func (s *Switch) takeBell(p *pod, ipv6 bool) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.Load() == 0 {
		return -1, errors.New("no process of the pod has called yet")
	}
	free, least, what := &p.free, 1, askSockets
	if ipv6 {
		free, least, what = &p.freeIPv6, 0, askSocketsIPv6
	}
	if len(*free) == least {
		namespace, err := namespaceOf(p.free[0])
		if err != nil {
			return -1, err
		}
		more, err := s.inside.sockets(what, namespace)
		unix.Close(namespace)
		if err != nil {
			return -1, err
		}
		*free = append(*free, more...)
	}
	last := len(*free) - 1
	bell := (*free)[last]
	*free = (*free)[:last]
	return bell, nil
}

// namespaceOf returns the network namespace of a socket of a pod.
func namespaceOf(socket int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCGSKNS, 0)
	if errno != 0 {
		return -1, fmt.Errorf("find the network namespace of a socket: %w", errno)
	}
	return int(fd), nil
}

// giveBell resets a bell's connection, and keeps the socket for the next one.
func (p *pod) giveBell(bell int, ipv6 bool) {
	if bell <= 0 {
		return
	}
	if err := disconnect(bell); err != nil {
		unix.Close(bell)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	const spare = 64
	free := &p.free
	if ipv6 {
		free = &p.freeIPv6
	}
	if p.free == nil || len(*free) >= spare {
		unix.Close(bell) // the pod is gone, or has enough
		return
	}
	*free = append(*free, bell)
}

// disconnect makes a TCP socket as if it were new.
func disconnect(socket int) error {
	if errno := rawConnect(socket, make([]byte, unix.SizeofSockaddrInet4)); errno != 0 { // AF_UNSPEC
		return errno
	}
	return nil
}
