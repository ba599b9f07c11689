package fastpath

import (
	"math"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// predecessor is a Switch that has died. The process of its fdHolder still has the
// descriptors, if it is alive.
type predecessor struct {
	records []*record
	// pid is the process ID of the fdHolder's process, and holder its pidfd, or -1 if that
	// process has died too.
	holder, pid int
}

// newPredecessor returns the predecessor that wrote the records in the state. The caller
// must close it.
func newPredecessor(records []*record) *predecessor {
	p := &predecessor{records: records, holder: -1}
	for _, r := range records {
		if r.kind == kindFDHolder {
			p.pid = int(r.fd)
			if fd, err := unix.PidfdOpen(p.pid, 0); err == nil {
				p.holder = fd
			}
		}
	}
	return p
}

// lost reports whether the descriptors are lost.
func (p *predecessor) lost() bool { return p.holder < 0 }

// kill ends the process that holds the descriptors.
func (p *predecessor) kill() {
	if p.holder >= 0 {
		_ = unix.PidfdSendSignal(p.holder, unix.SIGKILL, nil, 0)
	}
}

// close closes the pidfd. It may be called twice.
func (p *predecessor) close() {
	if p.holder >= 0 {
		unix.Close(p.holder)
		p.holder = -1
	}
}

// fetchedRecord is a record with this process' copies of its descriptors. 0 means none.
type fetchedRecord struct {
	r             *record
	fd, bell, old int32
}

// fetch copies the descriptors of a record into this process. It returns 0 for a
// descriptor that cannot be fetched.
func (p *predecessor) fetch(r *record) fetchedRecord {
	f := fetchedRecord{r: r}
	get := func(fd int32) int32 {
		if p.holder < 0 || fd <= 0 {
			return 0
		}
		got, err := unix.PidfdGetfd(p.holder, int(fd), 0)
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
		unix.Close(int(f.fd)) // another process now has the process ID
		f.fd = 0
	}
	return f
}

// orphans holds descriptors that a predecessor had not recorded when it died.
type orphans struct {
	// connections holds the connections that were accepted for pods.
	connections []int
	// deliveries holds the connections over which a runtime sends the filter of a
	// container.
	deliveries []int
}

// orphans fetches the predecessor's unrecorded descriptors. hostNetwork is the cookie of
// the host's network namespace, and containers is Config.Containers. It returns an error if
// the descriptors cannot be listed.
func (p *predecessor) orphans(hostNetwork uint64, containers *net.UnixListener) (found orphans, err error) {
	known := map[int]bool{}
	for _, r := range p.records {
		if r.kind != kindFDHolder {
			known[int(r.fd)], known[int(r.bell)], known[int(r.old)] = true, true, true
		}
	}
	descriptors, err := listDescriptors(p.pid, math.MaxInt)
	if err != nil {
		return orphans{}, err
	}
	byEnds := map[ends]int{}
	for _, fd := range descriptors {
		got, err := unix.PidfdGetfd(p.holder, fd, 0)
		if err != nil {
			continue
		}
		local, _ := sock.Local(got)
		peer, connected := sock.Peer(got)
		network, err := sock.NetworkCookie(got)
		switch {
		// Check this before the records. A record may name a closed descriptor, and the
		// delivery may have its number now.
		case isDelivery(got, containers):
			found.deliveries = append(found.deliveries, got)
		case known[fd] || err != nil || network == hostNetwork || !connected || isCallersSocket(got, p.records):
			unix.Close(got)
		default:
			byEnds[ends{local, peer}] = got
		}
	}
	for e, fd := range byEnds {
		if _, both := byEnds[ends{e.peer, e.local}]; both {
			unix.Close(fd) // the other end of a bell, which was reset
			continue
		}
		found.connections = append(found.connections, fd)
	}
	return found, nil
}

// isDelivery reports whether a descriptor is a connection to Config.Containers.
func isDelivery(fd int, containers *net.UnixListener) bool {
	raw, err := containers.SyscallConn()
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

// isCallersSocket reports whether a socket is an argument of a recorded call, whose caller
// still waits.
func isCallersSocket(socket int, records []*record) bool {
	return slices.ContainsFunc(records, func(r *record) bool {
		return r.kind == kindCall && r.call.ID != 0 &&
			linux.SameFile(os.Getpid(), socket, int(r.call.Thread), int(int32(r.call.Args[0])))
	})
}
