package control

import (
	"errors"
	"net"
	"sync"
)

// mergedListener accepts connections from several listeners as if they were one, because
// kube-apiserver serves exactly one. There are two: one in the node's network
// namespace, and one on the host's loopback.
type mergedListener struct {
	listeners []net.Listener
	accepted  chan net.Conn
	failed    chan error
	closed    chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// mergeListeners returns a listener that accepts from all listeners, and takes ownership of
// them. There must be at least one.
func mergeListeners(listeners []net.Listener) *mergedListener {
	m := &mergedListener{
		listeners: listeners,
		accepted:  make(chan net.Conn),
		failed:    make(chan error),
		closed:    make(chan struct{}),
	}
	for _, l := range listeners {
		go m.acceptFrom(l)
	}
	return m
}

func (m *mergedListener) acceptFrom(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			select {
			case m.failed <- err: // net/http retries after a temporary error
			case <-m.closed:
				return
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		select {
		case m.accepted <- conn:
		case <-m.closed:
			conn.Close()
			return
		}
	}
}

// Accept returns the next connection of any listener.
func (m *mergedListener) Accept() (net.Conn, error) {
	select {
	case conn := <-m.accepted:
		return conn, nil
	case err := <-m.failed:
		return nil, err
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// Close closes all listeners.
func (m *mergedListener) Close() error {
	m.closeOnce.Do(func() {
		close(m.closed)
		var errs []error
		for _, l := range m.listeners {
			errs = append(errs, l.Close())
		}
		m.closeErr = errors.Join(errs...)
	})
	return m.closeErr
}

// Addr returns the address of the first listener.
func (m *mergedListener) Addr() net.Addr { return m.listeners[0].Addr() }
