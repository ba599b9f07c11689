package fastpath

import "time"

// tidyEvery is the time between checks of idle connections.
const tidyEvery = 10 * time.Second

// sweepSoon schedules sweep.
func (s *Switch) sweepSoon() { s.sweepAlarm.after(sweepEvery) }

// sweep ends connects that have waited too long, and rings again for parked connections
// without a listener. It schedules the next sweep while there are any of these.
func (s *Switch) sweep() {
	if !s.sweepAlarm.clear() {
		return
	}
	now := time.Now()
	s.mu.Lock()
	tidy := now.Sub(s.tidied) > tidyEvery
	if tidy {
		s.tidied = now
	}
	s.mu.Unlock()
	left := s.outbound.checkDeadlines(now) + s.inbound.ringAgain(now)
	s.sockets.forgetClosed()
	if tidy {
		s.tidy(now)
	}
	if left > 0 {
		s.sweepSoon()
	}
}

// tidy closes idle and expired connections, and runs again while there are any.
func (s *Switch) tidy(now time.Time) {
	pending := s.inbound.expirePending(now)
	if idle := s.outbound.trim(); idle || pending > 0 {
		s.tidyTimer.Reset(tidyEvery)
	}
}
