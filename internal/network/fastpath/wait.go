package fastpath

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// queue holds the accepts that wait for one listener. It has no descriptor of the listener,
// which would stay open after its process was killed: epoll watches a file as long as any
// descriptor is open.
type queue struct {
	s       *Switch
	cookie  uint64
	token   uint64
	waiting []*waiting // under the Switch's lock
}

// waiting is an accept that waits for a connection.
type waiting struct {
	t     *trap
	q     *queue
	timer *time.Timer

	mu   sync.Mutex
	over bool
}

// waitFor adds a call to the queue of its listener.
func (s *Switch) waitFor(t *trap, listener int, cookie uint64) {
	unix.Close(t.thread)
	t.thread = -1
	w := &waiting{t: t}
	s.mu.Lock()
	q := s.queues[cookie]
	if q == nil {
		q = &queue{s: s, cookie: cookie}
		s.queues[cookie] = q
	}
	w.q = q
	q.waiting = append(q.waiting, w)
	s.waiting[w] = struct{}{}
	if limit, err := unix.GetsockoptTimeval(listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && (limit.Sec != 0 || limit.Usec != 0) {
		w.timer = time.AfterFunc(time.Duration(limit.Nano()), w.timeOut)
	}
	err := q.arm(listener)
	t.release() // before somebody else can answer
	s.checkSignalsSoonLocked()
	s.mu.Unlock()
	if err != nil && w.end() {
		t.answer(0, unix.ENOBUFS)
	}
}

// arm waits for a connection again. The caller holds the Switch's lock.
func (q *queue) arm(listener int) error {
	q.s.reactor.drop(q.token)
	return q.s.reactor.add(listener, unix.EPOLLIN, q, &q.token)
}

// ready lets the first call of the queue accept.
func (q *queue) ready(uint32) {
	if w := q.first(); w != nil && w.end() {
		done := w.t.exclude()
		q.s.accept(w.t)
		done()
	}
	// Where there are more, there may be another connection for them.
	for w := q.first(); w != nil; w = q.first() {
		if w.arm() {
			return
		}
	}
}

func (q *queue) first() *waiting {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	return q.waiting[0]
}

// arm makes the queue wait again, with the call's descriptor of the listener. An interrupted
// call leaves the queue.
func (w *waiting) arm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	t := w.t
	err := t.open()
	listener := -1
	if err == nil {
		listener, err = unix.PidfdGetfd(t.thread, t.argument(0), 0)
		unix.Close(t.thread)
		t.thread = -1
	}
	if err == nil && t.waits() {
		s := t.s
		s.mu.Lock()
		err = w.q.arm(listener)
		unix.Close(listener) // before somebody else can answer
		s.mu.Unlock()
		if err == nil {
			return true
		}
	} else if err == nil {
		unix.Close(listener)
	}
	w.leave()
	if t.waits() {
		t.answer(0, unix.ENOBUFS)
	} else {
		t.cancelled()
	}
	return false
}

func (w *waiting) timeOut() {
	if w.end() {
		w.t.answer(0, unix.EAGAIN)
	}
}

// end ends the waiting, once.
func (w *waiting) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.leave()
	return true
}

func (w *waiting) leave() {
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
	}
	s, q := w.t.s, w.q
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, w)
	q.waiting = slices.DeleteFunc(q.waiting, func(other *waiting) bool { return other == w })
	if len(q.waiting) == 0 && s.queues[q.cookie] == q {
		s.reactor.drop(q.token)
		delete(s.queues, q.cookie)
	}
}

// The kernel does not notify a Switch of signals. Since Linux 5.19 they do not end a waiting
// accept, so the Switch has to end it. Before, it only forgets the interrupted call.
const (
	signalsEvery, signalsAtLeast = 50 * time.Millisecond, time.Second
	// signalsShare divides a CPU: checkSignals may take one part of so many.
	signalsShare = 100
)

// checkSignalsSoonLocked schedules checkSignals while accepts wait.
func (s *Switch) checkSignalsSoonLocked() {
	if s.signalsDue || s.closed || len(s.waiting) == 0 {
		return
	}
	s.signalsDue = true
	s.signalTimer.Reset(min(max(signalsEvery, s.signalsTook*signalsShare), signalsAtLeast))
}

func (s *Switch) checkSignals() {
	began := time.Now()
	for _, w := range s.allWaiting() {
		interrupted := linux.Interrupted(w.t.tid())
		switch {
		case !w.t.waits():
			if w.end() {
				w.t.cancelled()
			}
		case interrupted:
			w.interrupt()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signalsDue, s.signalsTook = false, time.Since(began)
	s.checkSignalsSoonLocked()
}

// interrupt ends a call as accept(2) does when a signal comes.
func (w *waiting) interrupt() {
	if !w.end() {
		return
	}
	if w.timer != nil {
		w.t.answer(0, unix.EINTR)
	} else {
		w.t.answer(0, linux.RestartCall)
	}
}

// forgetWaiting removes the accepts of a container that has ended.
func (s *Switch) forgetWaiting(c *container) {
	for _, w := range s.allWaiting() {
		if w.t.from == c && w.end() {
			w.t.cancelled()
		}
	}
}

func (s *Switch) allWaiting() []*waiting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.waiting))
}
