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

// takeBell returns a socket of the pod's namespace.
func (s *Switch) takeBell(p *pod) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.Load() == 0 {
		return -1, errors.New("no process of the pod has called yet")
	}
	if len(p.free) == 1 {
		namespace, err := namespaceOf(p.free[0])
		if err != nil {
			return -1, err
		}
		more, err := s.inside.sockets(askSockets, namespace)
		unix.Close(namespace)
		if err != nil {
			return -1, err
		}
		p.free = append(p.free, more...)
	}
	bell := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
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
func (p *pod) giveBell(bell int) {
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
	if p.free == nil || len(p.free) >= spare {
		unix.Close(bell) // the pod is gone, or has enough
		return
	}
	p.free = append(p.free, bell)
}

// disconnect makes a TCP socket as if it were new.
func disconnect(socket int) error {
	var nowhere unix.RawSockaddr // AF_UNSPEC
	return rawConnect(socket, &nowhere)
}
