package fastpath

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// source receives the events of a descriptor. One worker calls ready. No worker calls it
// a second time until the source has called reactor.again.
type source interface {
	ready(events uint32)
}

// reactor waits for all descriptors with one epoll instance, each armed for one
// event. Its workers are threads that wait in the kernel, because Go's poller
// adds a wakeup to each event.
type reactor struct {
	epoll, end int

	mu      sync.Mutex
	sources map[uint64]source
	next    uint64
}

func newReactor() (*reactor, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance: %w", err)
	}
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	r := &reactor{epoll: epoll, end: end, sources: map[uint64]source{}, next: 1}
	// The zero token stands for the end. It is level-triggered, so that every worker sees it.
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, end, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		r.close()
		return nil, fmt.Errorf("wait for the end: %w", err)
	}
	return r, nil
}

func event(token uint64, events uint32) *unix.EpollEvent {
	return &unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32))}
}

// add registers a new descriptor for one event, and sets the token before the event can
// arrive. The epoll instance may still know the number from a file that another descriptor
// keeps alive.
func (r *reactor) add(fd int, events uint32, s source, set *uint64) error {
	r.mu.Lock()
	token := r.next
	r.next++
	r.sources[token] = s
	*set = token
	r.mu.Unlock()
	err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, event(token, events))
	if errors.Is(err, unix.EEXIST) {
		err = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_MOD, fd, event(token, events))
	}
	if err != nil {
		r.drop(token)
		*set = 0
		return fmt.Errorf("wait for descriptor %d: %w", fd, err)
	}
	return nil
}

// again arms a descriptor for its next event.
func (r *reactor) again(fd int, token uint64, events uint32) error {
	return unix.EpollCtl(r.epoll, unix.EPOLL_CTL_MOD, fd, event(token, events))
}

// forget removes a descriptor from the epoll instance. It is necessary for a file that is
// open elsewhere, too, because epoll would watch the file forever.
func (r *reactor) forget(fd int, token uint64) {
	r.drop(token)
	_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// drop removes the source of a token whose descriptor is closed or about to be.
func (r *reactor) drop(token uint64) {
	r.mu.Lock()
	delete(r.sources, token)
	r.mu.Unlock()
}

// work serves events until stop is called.
func (r *reactor) work() error {
	var events [1]unix.EpollEvent
	for {
		n, err := unix.EpollWait(r.epoll, events[:], -1)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		token := uint64(uint32(events[0].Fd)) | uint64(uint32(events[0].Pad))<<32
		if token == 0 {
			return nil
		}
		r.mu.Lock()
		s := r.sources[token]
		r.mu.Unlock()
		if s != nil {
			s.ready(events[0].Events)
		}
	}
}

// withoutSignals runs f on a thread that blocks signals, which Go uses to interrupt
// threads: after a signal while the kernel passes a descriptor to a caller, it would be
// unknown whether the call was answered.
func withoutSignals(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	// The thread had this mask before, so the kernel takes it.
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	return f()
}

func (r *reactor) stop() { _, _ = unix.Write(r.end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (r *reactor) close() {
	unix.Close(r.epoll)
	unix.Close(r.end)
}
