package fastpath

import (
	"sync"
	"time"
)

// sweepEvery is the time between checks of waiting calls and parked connections.
const sweepEvery = 50 * time.Millisecond

// alarm calls a function some time after it was set.
type alarm struct {
	mu          sync.Mutex
	timer       *time.Timer
	set, closed bool
}

func newAlarm(f func()) *alarm {
	a := &alarm{timer: time.AfterFunc(time.Hour, f)}
	a.timer.Stop()
	return a
}

// after sets the alarm, unless it is set already.
func (a *alarm) after(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.set || a.closed {
		return
	}
	a.set = true
	a.timer.Reset(d)
}

// clear lets the alarm be set again, and reports whether it is still in use. The
// alarm's function calls it.
func (a *alarm) clear() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set = false
	return !a.closed
}

func (a *alarm) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.timer.Stop()
}
