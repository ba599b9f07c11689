package fastpath

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A bell is a TCP socket of a pod's network namespace. Connecting it to a
// pod's own listener makes that acceptable in every way in which programs wait:
// poll, epoll, or in accept. Who accepts it gets the connection for which it
// was rung.

// takeBell returns a socket of the pod's namespace. One that was connected by
// IPv4 is of no use for IPv6 any more (the kernel goes on sending by IPv4), so
// each family has its own.
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

// giveBell takes a socket back, which resets its connection.
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
