package fastpath

import (
	"errors"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// A bell is a TCP socket in a pod's network namespace. When it connects to the pod's
// listener, the listener becomes ready for programs that wait in poll, epoll or
// accept. The program that accepts the bell receives the parked connection instead.

// errPodEnded reports that the last process of a pod has ended.
var errPodEnded = errors.New("the pod has ended")

// takeBell returns an unconnected socket of the pod's namespace. Each family has its own
// sockets, because a socket that was connected by IPv4 continues to send by IPv4. takeBell
// returns errPodEnded after the end of the pod, and another error if the namespace is not
// known yet or gives no sockets.
func (p *pod) takeBell(i *inside, ipv6 bool) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.Load() == 0 {
		return -1, errors.New("no process of the pod has called yet")
	}
	if len(p.free) == 0 {
		return -1, errPodEnded
	}
	free, least, what := &p.free, 1, askSockets
	if ipv6 {
		free, least, what = &p.freeIPv6, 0, askSocketsIPv6
	}
	if len(*free) == least {
		namespace, err := sock.Namespace(p.free[0])
		if err != nil {
			return -1, err
		}
		more, err := i.sockets(what, namespace)
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

// giveBell resets a bell's connection, and keeps the socket for the next one.
func (p *pod) giveBell(bell int, ipv6 bool) {
	if bell <= 0 {
		return
	}
	if err := sock.Disconnect(bell); err != nil {
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
