package fastpath

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// containersSource accepts the connections over which runtimes deliver filters.
type containersSource struct {
	s     *Switch
	fd    int
	token uint64
}

func (c *containersSource) ready(uint32) { c.s.acceptAll(c.fd, c.token, c.s.expectDelivery) }

func (s *Switch) expectDelivery(conn int) {
	d := &delivery{s: s, fd: conn}
	if err := s.reactor.add(conn, unix.EPOLLIN, d, &d.token); err != nil {
		unix.Close(conn)
	}
}

// delivery receives one message of a runtime: the ContainerProcessState of the OCI runtime
// specification, with a descriptor.
type delivery struct {
	s     *Switch
	fd    int
	token uint64
}

func (d *delivery) ready(uint32) {
	defer unix.Close(d.fd)
	d.s.reactor.drop(d.token)
	if err := d.s.takeDelivery(d.fd); err != nil {
		d.s.log.Warn("a container's connections stay on the overlay", "err", err)
	}
}

// takeDelivery peeks at the message, which stays in the socket until there is a record: a
// filter whose last descriptor was closed answers ENOSYS forever.
func (s *Switch) takeDelivery(fd int) error {
	message, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(8*4))
	n, rightsLen, _, _, err := unix.Recvmsg(fd, message, rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_PEEK)
	if err != nil {
		return fmt.Errorf("receive a container's filter: %w", err)
	}
	fds, err := passed(rights[:rightsLen])
	if err != nil {
		return fmt.Errorf("receive a container's filter: %w", err)
	}
	var state processState
	if err := json.Unmarshal(message[:n], &state); err != nil {
		sock.CloseAll(fds...)
		return fmt.Errorf("read the state of a container: %w", err)
	}
	var about metadata
	err = about.UnmarshalText([]byte(state.Metadata))
	if err != nil || len(fds) != 1 || len(state.Fds) != 1 || state.Fds[0] != filterName {
		sock.CloseAll(fds...)
		return fmt.Errorf("use a container's filter (%d descriptors %q, metadata %q): %w", len(fds), state.Fds, state.Metadata, unix.EBADMSG)
	}
	if s.pods.answersFor(fds[0], about.Address) {
		sock.CloseAll(fds...) // a predecessor has taken it
		return nil
	}
	// Also above the pod's share: a pod has few containers, and a container whose filter
	// is refused has no network.
	r := s.state.takeAgain(kindContainer, about.Address)
	if r == nil {
		sock.CloseAll(fds...)
		return errStateFull
	}
	r.fd, r.local, r.cookie = int32(fds[0]), packEnd(netip.AddrPortFrom(about.Address, 0)), about.Network
	r.peer, r.memory = packEnd(netip.AddrPortFrom(about.AddressIPv6, 0)), about.Memory
	_, err = s.adopt(r)
	return err
}

// adopt starts to answer the calls of a container.
func (s *Switch) adopt(r *record) (*container, error) {
	c := s.pods.add(r)
	_ = linux.WakeOnSameCPU(c.fd) // makes calls faster, since Linux 6.6
	source := &callSource{s, c}
	if err := s.reactor.add(c.fd, unix.EPOLLIN, source, &c.token); err != nil {
		source.release()
		return nil, err
	}
	return c, nil
}

// callSource receives the calls of a container.
type callSource struct {
	s *Switch
	*container
}

func (c *callSource) ready(events uint32) {
	if events&unix.EPOLLHUP != 0 {
		c.release()
		return
	}
	t := &trap{s: c.s.shared, from: c.container, record: c.s.state.take(kindCall, c.pod.address), thread: -1}
	if t.record == nil {
		c.refuseOne()
		return
	}
	t.record.fd = int32(c.fd)
	err := linux.ReceiveNotification(c.fd, t.call())
	_ = c.s.reactor.again(c.fd, c.token, unix.EPOLLIN)
	if err != nil {
		t.done() // cancelled meanwhile
		return
	}
	defer t.exclude()()
	c.s.handle(t)
}

// refuseOne refuses a call when no record is free. The kernel must not perform the call,
// because its socket may be switched.
func (c *callSource) refuseOne() {
	var n linux.Notification
	if linux.ReceiveNotification(c.fd, &n) == nil {
		c.s.counters.add(countFull)
		_ = linux.AnswerNotification(c.fd, n.ID, 0, unix.ENOBUFS)
	}
	_ = c.s.reactor.again(c.fd, c.token, unix.EPOLLIN)
}

// release forgets a container whose processes have all ended.
func (c *callSource) release() {
	c.s.reactor.drop(c.token)
	c.s.listeners.waiting.containerEnded(c.container)
	last := c.s.pods.remove(c.container)
	if last {
		c.s.sockets.podEnded()
	}
	c.s.state.put(c.record)
	// Close it last: answersFor would mistake another filter with this number for this
	// one, and close it.
	unix.Close(c.fd)
	if last {
		c.s.inbound.podEnded(c.pod)
		c.pod.close()
	}
}
