package workload

import "slices"

// turns lets the streams of plain output write one after the other, because that output
// does not name its container.
type turns struct {
	// queue holds the streams that have not ended, in the order of their turns.
	queue []*nodeStream
	// unordered reports whether the queue must be sorted before the next turn.
	unordered bool
	// writes reports whether more output of a stream that its node does not serve comes
	// in another way.
	writes func(*nodeStream) bool
}

// add makes a stream wait for the ends of the others.
func (t *turns) add(s *nodeStream) {
	s.turn = make(chan struct{})
	t.queue = append(t.queue, s)
	t.pass()
}

// sort puts the stream first whose turn it was in another process.
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

// await returns when the turn has come. If the run ends before, so does the process.
func await(turn <-chan struct{}) {
	if turn != nil {
		<-turn
	}
}
