package workload

import "slices"

// turns orders the streams of plain output, which does not name its container: each
// stream writes only after the ones before it have ended.
type turns struct {
	// queue holds the streams that have not ended, in the order of their turns.
	queue []*nodeStream
	// unordered reports whether the queue must be sorted before the next turn.
	unordered bool
	// writes is logs.fallbackWrites.
	writes func(*nodeStream) bool
}

// add appends a stream to the queue.
func (t *turns) add(s *nodeStream) {
	s.turn = make(chan struct{})
	t.queue = append(t.queue, s)
	t.pass()
}

// sort orders the queue: first the streams that another process has begun to write, then
// by creation time.
func (t *turns) sort() {
	slices.SortStableFunc(t.queue, func(a, b *nodeStream) int {
		if a.begun != b.begun {
			return map[bool]int{true: -1, false: 1}[a.begun]
		}
		return a.created.Compare(b.created)
	})
	t.unordered = false
	t.pass()
}

// pass gives the first stream of the queue its turn, and the next one when it has passed
// on all of its output.
func (t *turns) pass() {
	for len(t.queue) > 0 && !t.unordered {
		s := t.queue[0]
		if !isClosed(s.turn) {
			close(s.turn)
		}
		if !isClosed(s.done) || s.isAbsent() && (s.endedAt().IsZero() || t.writes(s)) {
			return
		}
		t.queue = t.queue[1:]
	}
}

// await returns when turn is closed, or at once if it is nil. It takes no context, because
// the process ends with the run.
func await(turn <-chan struct{}) {
	if turn != nil {
		<-turn
	}
}
