package registry

import (
	"net"
	"sync"
	"time"
)

// burst is the number of bytes that may be ahead of the rate, like a router's queue.
const burst = 64 << 10

// shaper bounds the rate of all connections together.
type shaper struct {
	net.Listener
	rate  float64 // bytes per second; 0: no limit
	delay time.Duration

	mu sync.Mutex
	// free is the time when all bytes will have been sent.
	free time.Time
}

// newLine returns a listener whose connections share a rate in bytes per second, and each
// begin after a delay.
func newLine(listener net.Listener, rate float64, delay time.Duration) net.Listener {
	return &shaper{Listener: listener, rate: rate, delay: delay}
}

func (l *shaper) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	// The handshake of a distant client would take a delay as well.
	return &end{Conn: connection, shaper: l, from: time.Now().Add(l.delay)}, nil
}

// take waits until the rate permits that many further bytes.
func (l *shaper) take(bytes int) {
	if l.rate <= 0 {
		return
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(bytes) / l.rate * float64(time.Second)))
	wait := l.free.Sub(now) - time.Duration(burst/l.rate*float64(time.Second))
	l.mu.Unlock()
	time.Sleep(wait)
}

// end is a connection through the shaper.
type end struct {
	net.Conn
	shaper *shaper
	from   time.Time
}

// Read waits, too: otherwise the first request would share the delay of its connection.
func (e *end) Read(p []byte) (int, error) {
	time.Sleep(time.Until(e.from))
	return e.Conn.Read(p)
}

func (e *end) Write(p []byte) (written int, err error) {
	time.Sleep(time.Until(e.from))
	for len(p) > 0 {
		part := p[:min(len(p), burst/4)]
		e.shaper.take(len(part))
		n, err := e.Conn.Write(part)
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}
