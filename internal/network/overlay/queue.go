package overlay

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// errDeviceGone reports that the device was removed, or its namespace ended.
var errDeviceGone = errors.New("the device was removed, or its network namespace ended")

const (
	// A batch is flushed once it has batchBytes. A packet of 64 KiB is sent
	// while it is still in the processor's cache; small packets share a flush.
	batchBytes = 1 << 16
	// wantedOffloads lists the offloads that the queues support.
	wantedOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN | unix.TUN_F_USO4 | unix.TUN_F_USO6

	maxFrame = linux.VnetHeaderLen + maxPacket
	// headroom is the free space before a frame, in bytes, for the wire header.
	headroom = atVnet
)

// queue is one queue of the device and its socket. Two threads serve it, one
// for each direction. They wait in poll(2) instead of Go's poller, so that a
// packet wakes the thread that handles it, and not a thread that wakes another.
type queue struct {
	index  int
	name   string // the device's file name
	log    *slog.Logger
	counts *counts
	table  *atomic.Pointer[table] // set before Run
	prober *prober
	key    []byte
	self   int
	single bool // the device accepts no UDP super-packets

	// device and socket are descriptors; end becomes readable when Run ends.
	// They are not registered with Go's poller, which would wake another
	// thread for every packet.
	device, socket, end int
}

func newQueue(index int, config Config, o *Overlay) (*queue, error) {
	file := config.Queues[index]
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), err)
	}
	var vnet bool
	var failure error
	if err := raw.Control(func(fd uintptr) { vnet, failure = linux.TUNHasVnetHeader(int(fd)) }); err != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), err)
	}
	if failure != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), failure)
	}
	if !vnet {
		return nil, fmt.Errorf("use %s: the device has no vnet header (IFF_VNET_HDR)", file.Name())
	}
	if err := setUpSocket(config.Conns[index], config.Log); err != nil {
		return nil, err
	}
	q := &queue{
		index: index, name: file.Name(), log: config.Log,
		counts: &o.counts[index], prober: o.prober, key: config.Key, self: config.Self,
		device: -1, socket: -1, end: -1,
	}
	if q.device, err = duplicate(file); err != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), err)
	}
	// TUN_F_USO4 and TUN_F_USO6 need Linux 6.2, which accepts both or neither.
	// On failure the device keeps its previous offloads.
	q.single = unix.IoctlSetInt(q.device, unix.TUNSETOFFLOAD, wantedOffloads) != nil
	if q.socket, err = duplicate(config.Conns[index]); err != nil {
		q.close()
		return nil, fmt.Errorf("use socket %s: %w", config.Conns[index].LocalAddr(), err)
	}
	return q, nil
}

func (q *queue) close() {
	for _, fd := range []*int{&q.device, &q.socket} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

func duplicate(of syscall.Conn) (fd int, err error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failure error
	err = raw.Control(func(original uintptr) { fd, failure = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, failure); err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Hold returns a duplicate of a queue or a socket for a process that only keeps
// it or passes it on. The duplicate is not registered with Go's poller. The
// caller should close the original: the poller is notified of every packet, even
// if another process reads it, and each notification wakes a thread.
func Hold(original syscall.Conn) (*os.File, error) {
	fd, err := duplicate(original)
	if err != nil {
		return nil, fmt.Errorf("hold a descriptor of the overlay: %w", err)
	}
	// os.NewFile registers only non-blocking files with the poller.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("hold a descriptor of the overlay: %w", err)
	}
	file := os.NewFile(uintptr(fd), "overlay")
	if err := unix.SetNonblock(fd, true); err != nil {
		file.Close()
		return nil, fmt.Errorf("hold a descriptor of the overlay: %w", err)
	}
	return file, nil
}

// Threads returns the number of threads that carry the packets of the queues.
// The caller of Run raises GOMAXPROCS by it: each thread keeps its P of Go's
// scheduler while packets arrive, instead of releasing and acquiring it for
// every packet.
func Threads(queues int) int { return 2 * queues }

// waiter waits for a descriptor or for the end of Run.
type waiter struct {
	fds     [2]unix.PollFd
	timeout unix.Timespec
}

// briefly bounds how long a waiting thread keeps its P. It then releases the P before
// the scheduler preempts it.
const briefly = time.Millisecond

func newWaiter(fd, end int, events int16) *waiter {
	return &waiter{fds: [2]unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(end), Events: unix.POLLIN}}}
}

// wait returns true when the descriptor is ready or the limit has passed, and
// false when Run ends. A negative limit means no limit.
func (w *waiter) wait(limit time.Duration) (bool, error) {
	first := briefly
	if limit >= 0 {
		first = min(first, limit)
	}
	w.timeout = unix.NsecToTimespec(first.Nanoseconds())
	n, err := linux.PollBriefly(w.fds[:], &w.timeout)
	if n == 0 && err == nil && first != limit {
		var timeout *unix.Timespec
		if limit >= 0 {
			w.timeout = unix.NsecToTimespec((limit - first).Nanoseconds())
			timeout = &w.timeout
		}
		_, err = unix.Ppoll(w.fds[:], timeout, nil)
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return false, err
	}
	return w.fds[1].Revents == 0 || err != nil, nil
}

// transmit sends the packets of the device until Run ends, and then returns nil.
func (q *queue) transmit() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sender := newUDPSender(q)
	waiter := newWaiter(q.device, q.end, unix.POLLIN)
	buffer := make([]byte, batchBytes+headroom+maxFrame)
	acks := new(ackHolder)
	used := 0
	flush := func() error {
		used = 0
		acks.flushed()
		return sender.flush()
	}
	for {
		start := buffer[used:]
		n, err := linux.Read(q.device, start[headroom:headroom+maxFrame])
		switch {
		case err == nil && n > 0:
		case errors.Is(err, unix.EAGAIN):
			left := acks.due(sender.send)
			if err := flush(); err != nil {
				return err
			}
			if more, err := waiter.wait(left); err != nil || !more {
				return err
			}
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil || errors.Is(err, unix.EBADFD):
			return fmt.Errorf("read %s: %w", q.name, errDeviceGone)
		default:
			return fmt.Errorf("read %s: %w", q.name, err)
		}
		if n <= linux.VnetHeaderLen {
			continue
		}
		packet := start[headroom+linux.VnetHeaderLen : headroom+n]
		to := q.table.Load().route(packet)
		if to == nil {
			if !isMulticast(packet) {
				q.counts.unroutable.Add(1)
			}
			continue
		}
		if n < largestAck && acks.take(to, start[:headroom+n], sender.send) {
			continue
		}
		sender.send(to, start[:headroom+n])
		// Align the next frame.
		used += (headroom + n + 15) &^ 15
		if used >= batchBytes || sender.full() {
			if err := flush(); err != nil {
				return err
			}
			if q.ended() {
				return nil
			}
		}
	}
}

// ended reports whether Run is ending, for a loop that never waits.
func (q *queue) ended() bool { return q.prober.overlay.ending.Load() }

// write delivers a packet to the device. It returns an error if the kernel refuses the
// packet. The error wraps errDeviceGone if the device is gone. Any thread may call it.
func (q *queue) write(vector []unix.Iovec) error {
	for {
		err := linux.WriteVector(q.device, vector)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EBADFD):
			return fmt.Errorf("write %s: %w", q.name, errDeviceGone)
		}
		return err
	}
}
