package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/share"
)

// The state is memory that outlives a Switch. It records the purpose of descriptors, the
// calls that wait for an answer, and the switched sockets. The kernel writes calls directly
// into it, so that no received call is lost. Another process keeps the descriptors open.
//
// A successor trusts the state, so no other process may have the file.

// kind selects the meaning of a record. It is written last and cleared first.
type kind uint32

const (
	kindFree kind = iota
	// kindFDHolder describes the process that holds the descriptors. fd is its process ID.
	kindFDHolder
	// kindContainer describes a container. fd is the listener of its filter, and bell an
	// unconnected socket in the pod's network namespace, or 0 if there is none yet. local
	// is the pod's IPv4 address, and peer its IPv6 address, or :: if it has none. cookie is
	// the cookie of the network namespace.
	kindContainer
	// kindCall describes a call that waits for an answer on the listener fd. stage tells
	// which connection bell is.
	kindCall
	// kindParked describes a parked connection. fd is the connection from peer to the pod's
	// listener at local, and bell the connection that makes the pod accept.
	kindParked
	// kindSwitched describes a switched socket by its cookie. local and peer are the
	// addresses that the pod sees, hostLocal and hostPeer the real ones. If peer is a
	// Service, target is the pod behind it.
	kindSwitched
	// kindSticky describes a session affinity. Connections from local to the Service peer
	// lead to target until the time in cookie.
	kindSticky
	// kindSteered describes a pod's own socket by its cookie. It is connected from
	// hostLocal to target, a pod of the Service peer.
	kindSteered
)

// stage is the progress of a call. A successor continues there.
type stage uint32

const (
	stageBegun stage = iota
	// stageAsking means that asked was sent on the connection bell. answer holds the
	// answer once it has arrived.
	stageAsking
	// stageReplacing means that the connection bell may already be the caller's socket.
	// cookie is the cookie of bell.
	stageReplacing
	// stageAccepted means that the connection bell was accepted for the caller.
	stageAccepted
	// stageDelivering means that the caller may already have the connection bell.
	stageDelivering
	// stageSteering means that the caller's socket may have been made non-blocking.
	stageSteering
	// stageRinging means that the other node has no answer about a parked connection yet.
	stageRinging
)

// record is the state of one thing that must outlive a Switch. Its descriptors are numbers
// in the process that wrote it.
type record struct {
	kind  kind
	stage stage
	fd    int32
	bell  int32
	// old is the socket that is replaced, in stageReplacing.
	old int32
	// ipv6 reports whether the program's socket is an IPv6 socket, and plain whether a
	// parked connection came over the overlay.
	ipv6, plain bool
	// again reports whether a process may already have the parked connection.
	again bool
	// unreported reports whether the program has received no answer for its switched
	// socket, and pending whether the answer was EINPROGRESS.
	unreported, pending bool
	// outside reports whether the peer of a switched socket is no pod.
	outside bool
	call    linux.Notification
	cookie  uint64
	// memory is the memory of a container in bytes, for sysinfo(2). If it is 0, the
	// kernel answers the call.
	memory uint64

	local, peer, target, hostLocal, hostPeer end
	asked                                    [preambleLen]byte
	answer                                   [answerLen]byte
}

// note records the stage of a call and its connection. If the process dies before it has
// recorded them, the successor finds the connection by predecessor.orphans.
func (r *record) note(at stage, connection int) {
	atomic.StoreUint32((*uint32)(&r.stage), uint32(at))
	atomic.StoreInt32(&r.bell, int32(connection))
}

// end holds an address and port without pointers.
type end struct {
	address [16]byte
	port    uint16
}

func packEnd(a netip.AddrPort) end { return end{a.Addr().As16(), a.Port()} }

func (e end) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(e.address).Unmap(), e.port)
}

const (
	recordLen  = 320
	numRecords = 1 << 16
)

var _ [recordLen - unsafe.Sizeof(record{})]byte // a record fits into recordLen bytes

// NewState creates the memory file of a Switch and its successors. The file is sparse.
func NewState() (*os.File, error) {
	fd, err := unix.MemfdCreate("fast-path", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create memory file fast-path: %w", err)
	}
	if err := unix.Ftruncate(fd, recordLen*numRecords); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("size memory file fast-path: %w", err)
	}
	return os.NewFile(uintptr(fd), "fast-path"), nil
}

// state hands out records.
type state struct {
	memory []byte
	used   []int // indexes of the records in use when the state was opened, ascending
	// calls shares the records of kindCall among the pods, and others all other records.
	// They are separate, so that a pod with many connections can still call.
	calls, others *share.Places
	// refused is called when a pod gets no record because it has used up its share.
	refused func(kind, netip.Addr)

	mu     sync.Mutex
	free   []int32
	owners map[int32]owner // by the index of their records
}

// owner is the pod of a record, and the share.Places that count the record.
type owner struct {
	places *share.Places
	pod    netip.Addr
}

// openState maps a file of NewState, and finds the records of a predecessor in it.
func openState(file *os.File) (*state, error) {
	memory, err := unix.Mmap(int(file.Fd()), 0, recordLen*numRecords, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of the fast path: %w", err)
	}
	s := &state{
		memory: memory, calls: share.New(numRecords / 4), others: share.New(numRecords * 5 / 8),
		refused: func(kind, netip.Addr) {}, owners: make(map[int32]owner),
	}
	// Skip holes, because reading would allocate their memory.
	written, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_DATA)
	for err == nil {
		var end int64
		if end, err = unix.Seek(int(file.Fd()), written, unix.SEEK_HOLE); err != nil {
			break
		}
		for i := int(written / recordLen); i < numRecords && i*recordLen < int(end); i++ {
			if s.at(i).kind != kindFree {
				s.used = append(s.used, i)
			}
		}
		written, err = unix.Seek(int(file.Fd()), end, unix.SEEK_DATA)
	}
	if !errors.Is(err, unix.ENXIO) {
		s.close()
		return nil, fmt.Errorf("look through the memory of the fast path: %w", err)
	}
	s.used = slices.Compact(s.used) // a record may lie in two extents
	for i := numRecords - 1; i >= 0; i-- {
		if _, found := slices.BinarySearch(s.used, i); !found {
			s.free = append(s.free, int32(i))
		}
	}
	for _, i := range s.used {
		// The record of a call names no pod, but the call is soon over.
		if pod := s.at(i).local.addrPort().Addr(); !pod.IsUnspecified() {
			s.others.Add(pod)
			s.owners[int32(i)] = owner{s.others, pod}
		}
	}
	return s, nil
}

func (s *state) at(i int) *record { return (*record)(unsafe.Pointer(&s.memory[i*recordLen])) }

// inherited returns the records that were in use when the state was opened.
func (s *state) inherited() []*record {
	var all []*record
	for _, i := range s.used {
		all = append(all, s.at(i))
	}
	return all
}

var errStateFull = errors.New("the memory of the fast path is full")

// take returns a zero record of a kind for a pod. It returns nil if none is free, or if
// the pod has used up its share. The share protects the other pods, whose calls fail when
// no record is free.
func (s *state) take(k kind, pod netip.Addr) *record {
	places := s.others
	if k == kindCall {
		places = s.calls
	}
	if !places.Take(pod) {
		s.refused(k, pod)
		return nil
	}
	return s.takeIn(places, k, pod)
}

// takeAgain returns a record even if the pod has used up its share. It is for containers,
// and for connections that had a record before. It returns nil if none is free.
func (s *state) takeAgain(k kind, pod netip.Addr) *record {
	s.others.Add(pod)
	return s.takeIn(s.others, k, pod)
}

func (s *state) takeIn(places *share.Places, k kind, pod netip.Addr) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.takeLocked(k)
	if r == nil {
		places.Give(pod)
		return nil
	}
	s.owners[s.index(r)] = owner{places, pod}
	return r
}

// takeFrom returns a record that replaces another one in the pod's share. The caller puts
// the other one back. takeFrom returns nil if no record is free. Neither record may be of
// kindCall.
func (s *state) takeFrom(k kind, before *record) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.takeLocked(k)
	if r == nil {
		return nil
	}
	if o, owned := s.owners[s.index(before)]; owned {
		delete(s.owners, s.index(before))
		s.owners[s.index(r)] = o
	}
	return r
}

func (s *state) takeLocked(k kind) *record {
	if len(s.free) == 0 {
		return nil
	}
	r := s.at(int(s.free[len(s.free)-1]))
	s.free = s.free[:len(s.free)-1]
	*r = record{kind: k}
	return r
}

func (s *state) index(r *record) int32 {
	return int32((uintptr(unsafe.Pointer(r)) - uintptr(unsafe.Pointer(&s.memory[0]))) / recordLen)
}

// put frees a record. It ignores nil.
func (s *state) put(r *record) {
	if r == nil {
		return
	}
	i := s.index(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, owned := s.owners[i]; owned {
		delete(s.owners, i)
		o.places.Give(o.pod)
	}
	r.kind = kindFree
	s.free = append(s.free, i)
}

func (s *state) close() { _ = unix.Munmap(s.memory) }
