package fastpath

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// findNamespace finds the network namespace of the caller's pod, if no earlier call has. It
// returns an error if the caller was interrupted or is not in the pod's namespace.
func (ps *pods) findNamespace(t *trap) error {
	p := t.from.pod
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.Load() != 0 {
		return nil
	}
	namespace, err := unix.Open("/proc/"+strconv.Itoa(t.tid())+"/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace of pod %s: %w", p.address, err)
	}
	defer unix.Close(namespace)
	if !t.waits() {
		return unix.ESRCH
	}
	bells, err := t.s.inside.sockets(askSockets, namespace)
	if err != nil {
		return err
	}
	network, err := sock.NetworkCookie(bells[0])
	switch {
	case err != nil:
	case network == t.s.hostNetwork:
		err = errors.New("it is the host's")
	case network != t.from.record.cookie:
		// The runtime is under the filter too while it creates the container.
		err = errors.New("the process is not in it")
	}
	if err != nil {
		for _, bell := range bells {
			unix.Close(bell)
		}
		return fmt.Errorf("use the network namespace of pod %s: %w", p.address, err)
	}
	p.free = bells
	p.setNamespace(network, bells[0])
	ps.noteSocket(p, bells[0])
	return nil
}

// inode returns the inode of a socket in the pod's namespace, or 0 if no process has it
// open.
func (p *pod) inode(i *inside, r *record) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, nil // the pod is gone
	}
	if p.diag == nil {
		namespace, err := sock.Namespace(p.free[0])
		if err != nil {
			return 0, err
		}
		defer unix.Close(namespace)
		made, err := i.sockets(askDiag, namespace)
		if err != nil {
			return 0, err
		}
		p.diag = linux.NewSocketDiag(made[0])
	}
	return p.diag.Inode(r.hostLocal.addrPort(), r.hostPeer.addrPort(), r.cookie)
}
