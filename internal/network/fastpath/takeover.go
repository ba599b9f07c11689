package fastpath

import (
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// A Switch that dies leaves its state and its descriptors. Another process, the holder,
// shares its table of descriptors and does nothing else. So a successor finds all
// unanswered calls and undelivered connections, and continues with them.

// fdHolderSource watches the process that holds descriptors.
type fdHolderSource struct {
	s     *Switch
	pid   int
	fd    int
	token uint64
}

// ready replaces a holder that has died.
func (k *fdHolderSource) ready(uint32) {
	k.s.reactor.drop(k.token)
	unix.Close(k.fd)
	_ = linux.AwaitChild(k.pid)
	if err := k.s.startFDHolder(); err != nil {
		k.s.config.Log.Error("connections being made will not survive the death of this process", "err", err)
	}
}

// startFDHolder starts the process that holds this one's descriptors.
func (s *Switch) startFDHolder() error {
	pid, err := linux.StartFDHolder(int(s.lifeline.Fd()))
	if err != nil {
		return err
	}
	k := &fdHolderSource{s: s, pid: pid}
	if k.fd, err = unix.PidfdOpen(pid, 0); err != nil {
		return fmt.Errorf("watch the process that keeps descriptors: %w", err)
	}
	// If its descriptors cannot be fetched, as with Yama's ptrace_scope 2, pods would
	// hang forever when this process dies.
	probe, err := unix.PidfdGetfd(k.fd, int(s.lifeline.Fd()), 0)
	if err != nil {
		_ = unix.PidfdSendSignal(k.fd, unix.SIGKILL, nil, 0)
		_ = linux.AwaitChild(pid)
		return fmt.Errorf("fetch a descriptor from the process that keeps them (%s): %w", yamaRemedy, err)
	}
	unix.Close(probe)
	if err := s.reactor.add(k.fd, unix.EPOLLIN, k, &k.token); err != nil {
		return err
	}
	if s.fdHolder == nil {
		s.fdHolder = s.state.take(kindFDHolder)
	}
	s.fdHolder.fd = int32(pid)
	return nil
}

// succeed takes over from a predecessor if there was one.
func (s *Switch) succeed() error {
	records := s.state.inherited()
	old := -1
	for _, r := range records {
		if r.kind == kindFDHolder {
			s.fdHolder = r
			fd, err := unix.PidfdOpen(int(r.fd), 0)
			if err == nil {
				old = fd
				defer unix.Close(fd)
			}
		}
	}
	// Records have the old numbers until all new ones are known.
	fetched := make([]fetchedRecord, 0, len(records))
	for _, r := range records {
		fetched = append(fetched, fetch(old, r))
	}
	if old >= 0 {
		s.orphans = s.findOrphans(old, int(s.fdHolder.fd), records)
	}
	if err := s.startFDHolder(); err != nil {
		return err
	}
	listeners, accepted := map[int32]int32{}, map[int32]bool{}
	for _, f := range fetched {
		switch f.r.kind {
		case kindContainer:
			listeners[f.r.fd] = f.fd
		case kindCall:
			accepted[f.r.bell] = true
		}
	}
	for _, f := range fetched {
		if f.r.kind == kindParked && accepted[f.r.fd] {
			// It was about to be given to a caller.
			sock.CloseAll(int(f.fd))
			f.fd = 0
		}
		if f.r.kind == kindCall {
			f.fd = listeners[f.r.fd]
		}
		if f.r.kind != kindFDHolder {
			f.r.fd, f.r.bell, f.r.old = f.fd, f.bell, f.old
		}
	}
	if old >= 0 {
		_ = unix.PidfdSendSignal(old, unix.SIGKILL, nil, 0)
	}
	return s.adoptRecords(records)
}

type fetchedRecord struct {
	r             *record
	fd, bell, old int32
}

// fetch fetches the descriptors of a record from the holder. 0 means none.
func fetch(holder int, r *record) fetchedRecord {
	f := fetchedRecord{r: r}
	get := func(fd int32) int32 {
		if holder < 0 || fd <= 0 {
			return 0
		}
		got, err := unix.PidfdGetfd(holder, int(fd), 0)
		if err != nil {
			return 0
		}
		return int32(got)
	}
	switch r.kind {
	case kindContainer, kindParked:
		f.fd, f.bell = get(r.fd), get(r.bell)
	case kindCall:
		f.bell = get(r.bell)
		if r.stage == stageReplacing {
			f.old = get(r.old)
		}
	}
	if r.kind == kindContainer && f.fd > 0 && !linux.IsListener(int(f.fd)) {
		unix.Close(int(f.fd)) // another process has the holder's number
		f.fd = 0
	}
	return f
}

// orphans holds descriptors that a predecessor had not recorded when it died.
type orphans struct {
	// connections were accepted for pods.
	connections []int
	// deliveries are connections of runtimes that send a container's filter.
	deliveries []int
}

// findOrphans fetches the orphans from the holder.
func (s *Switch) findOrphans(holder, pid int, records []*record) (found orphans) {
	known := map[int]bool{}
	for _, r := range records {
		if r.kind != kindFDHolder {
			known[int(r.fd)], known[int(r.bell)], known[int(r.old)] = true, true, true
		}
	}
	descriptors, err := listDescriptors(pid, math.MaxInt)
	if err != nil {
		s.config.Log.Error("connections that were being accepted are lost", "err", err)
		return orphans{}
	}
	byEnds := map[ends]int{}
	for _, fd := range descriptors {
		got, err := unix.PidfdGetfd(holder, fd, 0)
		if err != nil {
			continue
		}
		local, _ := sock.Local(got)
		peer, connected := sock.Peer(got)
		network, err := sock.NetworkCookie(got)
		switch {
		// Check this before the records: one may name a closed descriptor whose number
		// the delivery has received since.
		case s.isDelivery(got):
			found.deliveries = append(found.deliveries, got)
		case known[fd] || err != nil || network == s.hostNetwork || !connected || isCallersSocket(got, records):
			unix.Close(got)
		default:
			byEnds[ends{local, peer}] = got
		}
	}
	for e, fd := range byEnds {
		if _, both := byEnds[ends{e.peer, e.local}]; both {
			unix.Close(fd) // of a bell that was taken back
			continue
		}
		found.connections = append(found.connections, fd)
	}
	return found
}

// isDelivery reports whether a descriptor is a connection to Config.Containers.
func (s *Switch) isDelivery(fd int) bool {
	raw, err := s.config.Containers.SyscallConn()
	if err != nil {
		return false
	}
	var own unix.Sockaddr
	if controlErr := raw.Control(func(listener uintptr) { own, err = unix.Getsockname(int(listener)) }); controlErr != nil || err != nil {
		return false
	}
	wanted, ok1 := own.(*unix.SockaddrUnix)
	address, err := unix.Getsockname(fd)
	name, ok2 := address.(*unix.SockaddrUnix)
	return err == nil && ok1 && ok2 && wanted.Name != "" && name.Name == wanted.Name && sock.Option(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN) == 0
}

// isCallersSocket reports whether a socket is the one that a waiting call is about.
func isCallersSocket(socket int, records []*record) bool {
	return slices.ContainsFunc(records, func(r *record) bool {
		return r.kind == kindCall && r.call.ID != 0 &&
			linux.SameFile(os.Getpid(), socket, int(r.call.Thread), int(int32(r.call.Args[0])))
	})
}

// podOf returns the pod that owns the namespace of a socket.
func (s *Switch) podOf(socket int) *pod {
	network, err := sock.NetworkCookie(socket)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if p.network.Load() == network {
			return p
		}
	}
	return nil
}

// adoptRecords rebuilds the Switch from a predecessor's records.
func (s *Switch) adoptRecords(records []*record) error {
	containers := map[int32]*container{}
	for _, r := range records {
		switch {
		case r.kind == kindSwitched || r.kind == kindSteered:
			s.known[r.cookie] = r
		case r.kind == kindSticky:
			s.sticks[stick{r.local.addrPort().Addr(), r.peer.addrPort()}] = r
		case r.kind == kindContainer && r.fd == 0:
			if pod := r.local.addrPort().Addr(); !slices.Contains(s.lost, pod) {
				s.lost = append(s.lost, pod)
			}
			s.state.put(r)
		case r.kind == kindContainer:
			c, err := s.adopt(r)
			if err != nil {
				return err
			}
			containers[r.fd] = c
		}
	}
	s.forgetAt = max(minKnown, 2*len(s.known))
	for _, r := range records {
		switch r.kind {
		case kindParked:
			s.adoptParked(r)
		case kindCall:
			c := containers[r.fd]
			if c == nil || r.call.ID == 0 {
				sock.CloseAll(int(r.bell))
				s.state.put(r)
				continue
			}
			s.resumed = append(s.resumed, &trap{s: s, from: c, record: r, thread: -1})
		}
	}
	if len(s.lost) > 0 {
		s.config.Log.Error("the process that kept the descriptors of connections was killed as well: pods cannot connect any more", "pods", s.lost)
	}
	return nil
}

func (s *Switch) adoptParked(r *record) {
	p := s.pods[r.local.addrPort().Addr()]
	lost := p == nil || r.fd == 0 || r.stage == stageRinging
	if r.bell > 0 && (lost || p.network.Load() == 0) {
		// It has rung for nothing; accept passes over it.
		_ = sock.Disconnect(int(r.bell))
		unix.Close(int(r.bell))
		r.bell = 0
	}
	if lost {
		if r.fd > 0 {
			sock.Reset(int(r.fd))
		}
		s.state.put(r)
		return
	}
	if r.answer != [answerLen]byte{} && sock.Sent(int(r.fd)) == challengeLen {
		_, _ = unix.Write(int(r.fd), r.answer[:])
	}
	p.parked.Add(1)
	s.park(&parked{record: r, pod: p, ends: ends{r.local.addrPort(), r.peer.addrPort()}, plain: r.plain, fd: int(r.fd), bell: int(r.bell)})
}
