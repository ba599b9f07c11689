package egress

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// connection joins a socket of the host with an endpoint of the stack.
type connection struct {
	engine  *engine
	outside *net.TCPConn
	inside  tcpip.Endpoint
	queue   *waiter.Queue
	abort   sync.Once
}

// relay copies in both directions until both have ended. The end of one direction is
// forwarded and does not affect the other. An error ends both, with a reset on each side.
func (c *connection) relay(ctx context.Context) {
	stop := context.AfterFunc(ctx, c.reset)
	defer stop()
	var outward sync.WaitGroup
	outward.Go(func() {
		if c.copyOut() != nil {
			c.reset()
		}
	})
	if c.copyIn() != nil {
		c.reset()
	}
	outward.Wait()
}

// reset drops the connection on both sides at once.
func (c *connection) reset() {
	c.abort.Do(func() {
		_ = c.outside.SetLinger(0) // fails only when closed
		c.outside.Close()
		c.inside.Abort()
	})
}

// copyIn carries bytes from the outside to the pod. While the pod does not read, copyIn
// blocks, and the window of the host's connection closes.
func (c *connection) copyIn() error {
	raw, err := c.outside.SyscallConn()
	if err != nil {
		return err
	}
	writable := newWaiter(c.queue, waiter.WritableEvents|waiter.EventErr|waiter.EventHUp)
	defer writable.stop()
	for {
		var n int
		var failure error
		var buffer *[256 << 10]byte
		err := raw.Read(func(fd uintptr) bool {
			buffer = copyBuffers.Get().(*[256 << 10]byte)
			for {
				n, failure = unix.Read(int(fd), buffer[:])
				if !errors.Is(failure, unix.EINTR) {
					break
				}
			}
			if errors.Is(failure, unix.EAGAIN) {
				copyBuffers.Put(buffer)
				return false
			}
			return true
		})
		if err != nil {
			return err
		}
		if failure == nil && n > 0 {
			failure = c.writeInside(buffer[:n], writable)
		}
		copyBuffers.Put(buffer)
		switch {
		case failure != nil:
			return failure
		case n == 0:
			if err := c.inside.Shutdown(tcpip.ShutdownWrite); err != nil {
				return stackError(err)
			}
			return nil
		}
		c.engine.Counters.toPods.Add(uint64(n))
	}
}

func (c *connection) writeInside(data []byte, writable *stackWaiter) error {
	reader := bytes.NewReader(data)
	for reader.Len() > 0 {
		_, err := c.inside.Write(reader, tcpip.WriteOptions{})
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-writable.events
		default:
			return stackError(err)
		}
	}
	return nil
}

// copyOut carries bytes from the pod to the outside. While the outside does not read,
// copyOut blocks, and the window of the pod's connection closes.
func (c *connection) copyOut() error {
	readable := newWaiter(c.queue, waiter.ReadableEvents|waiter.EventErr|waiter.EventHUp)
	defer readable.stop()
	for {
		buffer := copyBuffers.Get().(*[256 << 10]byte)
		writer := tcpip.SliceWriter(buffer[:])
		result, err := c.inside.Read(&writer, tcpip.ReadOptions{})
		var failure error
		if result.Count > 0 {
			_, failure = c.outside.Write(buffer[:result.Count])
			c.engine.Counters.fromPods.Add(uint64(result.Count))
		}
		copyBuffers.Put(buffer)
		if failure != nil {
			return failure
		}
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-readable.events
		case *tcpip.ErrClosedForReceive:
			return c.outside.CloseWrite()
		default:
			return stackError(err)
		}
	}
}

// stackWaiter receives a value whenever an endpoint may have become ready.
type stackWaiter struct {
	queue  *waiter.Queue
	entry  waiter.Entry
	events chan struct{}
}

func newWaiter(queue *waiter.Queue, mask waiter.EventMask) *stackWaiter {
	w := &stackWaiter{queue: queue}
	w.entry, w.events = waiter.NewChannelEntry(mask)
	queue.EventRegister(&w.entry)
	return w
}

func (w *stackWaiter) stop() { w.queue.EventUnregister(&w.entry) }

// stackError converts an error of the stack.
func stackError(err tcpip.Error) error { return errors.New(err.String()) }
