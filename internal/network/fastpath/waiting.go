package fastpath

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// waitingCalls holds the accepts that wait for connections.
type waitingCalls struct {
	reactor *reactor
	// accept answers one of them. It may add the call again.
	accept func(*trap)

	mu     sync.Mutex
	queues map[uint64]*queue // by the cookie of a listener
	calls  map[*waiting]struct{}
	// signals runs checkSignals.
	signals *alarm
	// took is the duration of the last checkSignals.
	took time.Duration
}

// queue holds the accepts that wait for one listener. It keeps no descriptor of the
// listener, which would stay open after its process was killed. epoll watches the listener
// as long as any process has it open.
type queue struct {
	in      *waitingCalls
	cookie  uint64
	token   uint64
	waiting []*waiting // under the lock of waitingCalls
}

// waiting is an accept that waits for a connection.
type waiting struct {
	t     *trap
	q     *queue
	timer *time.Timer

	mu   sync.Mutex
	over bool
}

func newWaitingCalls(r *reactor, accept func(*trap)) *waitingCalls {
	in := &waitingCalls{reactor: r, accept: accept, queues: map[uint64]*queue{}, calls: map[*waiting]struct{}{}}
	in.signals = newAlarm(in.checkSignals)
	return in
}

// add adds a call to the queue of its listener.
func (in *waitingCalls) add(t *trap, listener int, cookie uint64) {
	unix.Close(t.thread)
	t.thread = -1
	w := &waiting{t: t}
	in.mu.Lock()
	q := in.queues[cookie]
	if q == nil {
		q = &queue{in: in, cookie: cookie}
		in.queues[cookie] = q
	}
	w.q = q
	q.waiting = append(q.waiting, w)
	in.calls[w] = struct{}{}
	if limit, err := unix.GetsockoptTimeval(listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && (limit.Sec != 0 || limit.Usec != 0) {
		w.timer = time.AfterFunc(time.Duration(limit.Nano()), w.timeOut)
	}
	err := q.arm(listener)
	t.release() // before somebody else can answer
	in.checkSignalsSoonLocked()
	in.mu.Unlock()
	if err != nil && w.end() {
		t.answer(0, unix.ENOBUFS)
	}
}

// arm makes the reactor call ready at the next connection. The caller holds the lock of
// waitingCalls.
func (q *queue) arm(listener int) error {
	q.in.reactor.drop(q.token)
	return q.in.reactor.add(listener, unix.EPOLLIN, q, &q.token)
}

// ready lets the first call of the queue accept.
func (q *queue) ready(uint32) {
	if w := q.first(); w != nil && w.end() {
		done := w.t.exclude()
		q.in.accept(w.t)
		done()
	}
	// If more calls wait, there may be a connection for them, too.
	for w := q.first(); w != nil; w = q.first() {
		if w.arm() {
			return
		}
	}
}

func (q *queue) first() *waiting {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	return q.waiting[0]
}

// arm arms the queue with the call's descriptor of the listener, and reports whether it
// did. If the call was interrupted or arming fails, the call leaves the queue.
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
		w.q.in.mu.Lock()
		err = w.q.arm(listener)
		unix.Close(listener) // before somebody else can answer
		w.q.in.mu.Unlock()
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

// timeOut ends a call whose listener has a timeout (SO_RCVTIMEO).
func (w *waiting) timeOut() {
	if w.end() {
		w.t.answer(0, unix.EAGAIN)
	}
}

// end removes the call from its queue. It returns true only the first time, so that one
// goroutine answers the call.
func (w *waiting) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.leave()
	return true
}

// leave removes the call from its queue. The caller holds w.mu.
func (w *waiting) leave() {
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
	}
	q, in := w.q, w.q.in
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.calls, w)
	q.waiting = slices.DeleteFunc(q.waiting, func(other *waiting) bool { return other == w })
	if len(q.waiting) == 0 && in.queues[q.cookie] == q {
		in.reactor.drop(q.token)
		delete(in.queues, q.cookie)
	}
}

// The kernel does not notify a Switch of signals. Since Linux 5.19 they do not end a waiting
// accept, so the Switch has to end it. On older kernels the Switch only forgets the
// interrupted call.
const (
	// The pause between two checks is signalsEvery. It is longer if a check takes long, but
	// never longer than signalsAtLeast.
	signalsEvery, signalsAtLeast = 50 * time.Millisecond, time.Second
	// signalsShare makes the pause so many times as long as the check.
	signalsShare = 100
)

// checkSignalsSoonLocked schedules checkSignals while accepts wait.
func (in *waitingCalls) checkSignalsSoonLocked() {
	if len(in.calls) > 0 {
		in.signals.after(min(max(signalsEvery, in.took*signalsShare), signalsAtLeast))
	}
}

// checkSignals ends the accepts whose threads have a pending signal.
func (in *waitingCalls) checkSignals() {
	began := time.Now()
	for _, w := range in.all() {
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
	in.mu.Lock()
	defer in.mu.Unlock()
	in.took = time.Since(began)
	in.signals.clear()
	in.checkSignalsSoonLocked()
}

// interrupt ends a call as accept(2) does when a signal comes: the kernel restarts it,
// unless the listener has a timeout (signal(7)).
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

// containerEnded removes the accepts of a container without processes.
func (in *waitingCalls) containerEnded(c *container) {
	for _, w := range in.all() {
		if w.t.from == c && w.end() {
			w.t.cancelled()
		}
	}
}

func (in *waitingCalls) all() []*waiting {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Keys(in.calls))
}
