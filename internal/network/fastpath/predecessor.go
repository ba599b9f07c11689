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

// predecessor is a Switch that has died.
type predecessor struct {
	records []*record
	// holder is a pidfd of the process that holds its descriptors, or -1 if that has died
	// too, and pid is its number.
	holder, pid int
}

// newPredecessor returns the owner of the records that were in the state. close closes it.
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

// lost reports whether its descriptors are lost.
func (p *predecessor) lost() bool { return p.holder < 0 }

// kill ends the process that holds the descriptors.
func (p *predecessor) kill() {
	if p.holder >= 0 {
		_ = unix.PidfdSendSignal(p.holder, unix.SIGKILL, nil, 0)
	}
}

func (p *predecessor) close() {
	if p.holder >= 0 {
		unix.Close(p.holder)
		p.holder = -1
	}
}

type fetchedRecord struct {
	r             *record
	fd, bell, old int32
}

// fetch fetches the descriptors of a record. 0 means none.
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

// orphans fetches the orphans. hostNetwork is the cookie of the host's network namespace,
// and containers is Config.Containers.
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
		// Check this before the records: one may name a closed descriptor whose number
		// the delivery has received since.
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
			unix.Close(fd) // of a bell that was taken back
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

// isCallersSocket reports whether a socket is the one that a waiting call is about.
func isCallersSocket(socket int, records []*record) bool {
	return slices.ContainsFunc(records, func(r *record) bool {
		return r.kind == kindCall && r.call.ID != 0 &&
			linux.SameFile(os.Getpid(), socket, int(r.call.Thread), int(int32(r.call.Args[0])))
	})
}
