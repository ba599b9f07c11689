package lazy

import (
	"context"
	"sync"
	"time"
)

// Scheduler shares the connection between the downloads of all layers of a node.
// Requests for readers go first. Without it, a reader of one layer would wait
// for the background downloads of all others.
type Scheduler struct {
	mu sync.Mutex
	// asking counts the requests in flight for readers; asked is the time of the
	// last one.
	asking int
	asked  time.Time
	// inBackground counts the background requests in flight.
	inBackground int
	// changed is closed at the next change; nil while nobody waits for it.
	changed chan struct{}
}

const (
	// atOnceOfAll bounds the background requests in flight over all layers,
	// because they share the connection with readers. With two, parts of half a
	// megabyte left a connection of 200 Mbit/s and 10 ms idle a third of the
	// time.
	atOnceOfAll = 3
	// part is the size of background requests in bytes. A chunk of the default size of
	// four megabytes would take a sixth of a second on that connection. While a reader
	// waits, and for the duration lately after that, the size is partThen, because a
	// starting program soon waits again.
	part, partThen = aheadInBackground, 512 << 10
	lately         = time.Second
	// backgroundTimeout bounds the time that an unresponsive registry delays others.
	backgroundTimeout = 5 * time.Second
)

// wake wakes all waiting background requests. The caller holds mu.
func (l *Scheduler) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// foreground counts a request that a reader waits for, until end is called.
func (l *Scheduler) foreground() (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asking++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asking--
		l.asked = time.Now()
		l.wake()
	}
}

// wakeBackground wakes background requests, which then check whether they are urgent.
func (l *Scheduler) wakeBackground() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake()
}

// background waits until the connection is free, the request is urgent, or
// backgroundTimeout has passed. It returns the largest number of bytes to request, and a
// function to call when they have arrived.
func (l *Scheduler) background(ctx context.Context, urgent func() bool) (size int64, end func(), err error) {
	late := time.NewTimer(backgroundTimeout)
	defer late.Stop()
	for overdue := false; ; {
		l.mu.Lock()
		if urgent() || overdue || l.inBackground < atOnceOfAll && l.asking == 0 {
			l.inBackground++
			size = part
			if l.asking > 0 || time.Since(l.asked) < lately {
				size = partThen
			}
			l.mu.Unlock()
			return size, l.ended, nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-late.C:
			overdue = true
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}

func (l *Scheduler) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inBackground--
	l.wake()
}

// read requests a range of the blob: in one request if a reader waits, and otherwise in
// parts in the background.
func (f *File) read(ctx context.Context, from, to int64, waits bool) ([]byte, error) {
	if waits {
		defer f.scheduler.foreground()()
		return f.remote.read(ctx, from, to)
	}
	content := make([]byte, 0, to-from)
	for from < to {
		// A reader may already wait for the content in transfer.
		size, end, err := f.scheduler.background(ctx, func() bool { return f.wanted.Load() > 0 })
		if err != nil {
			return nil, err
		}
		next := min(to, from+size)
		more, err := f.remote.read(ctx, from, next)
		end()
		if err != nil {
			return nil, err
		}
		content, from = append(content, more...), next
	}
	return content, nil
}
