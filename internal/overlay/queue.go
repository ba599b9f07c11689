package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// errDeviceGone says that the device was removed, or its namespace ended.
var errDeviceGone = errors.New("the device was removed, or its network namespace ended")

// A batch ends with the packet that makes it this large: a packet of 64 KiB
// is sent while it is in the processor's cache, and small ones many at once.
const (
	batchBytes = 1 << 16
	maxFrame   = linux.VnetHeaderLen + maxPacket
)

// queue is one queue of the device with its carrier.
type queue struct {
	file    *os.File
	raw     syscall.RawConn
	carrier carrier
	gluer   *gluer
	counts  *counts
	tables  *atomic.Pointer[table]
	stopped atomic.Bool
	buffer  []byte

	// What the callbacks of raw work on.
	vector   []unix.Iovec
	failure  error // of transmit
	writing  func(fd uintptr) bool
	writeErr error
}

func newQueue(file *os.File, tables *atomic.Pointer[table], counts *counts) (*queue, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), err)
	}
	if err := file.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("use %s, which must be non-blocking: %w", file.Name(), err)
	}
	var vnet bool
	var failure error
	if err := raw.Control(func(fd uintptr) { vnet, failure = linux.TUNHasVnetHeader(int(fd)) }); err != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), err)
	}
	if failure != nil {
		return nil, fmt.Errorf("use %s: %w", file.Name(), failure)
	}
	if !vnet {
		return nil, fmt.Errorf("use %s: the device has no vnet header (IFF_VNET_HDR)", file.Name())
	}
	q := &queue{file: file, raw: raw, counts: counts, tables: tables, buffer: make([]byte, batchBytes+room+maxFrame)}
	q.gluer = newGluer(q, counts)
	q.writing = func(fd uintptr) bool {
		for {
			q.writeErr = linux.WriteVector(int(fd), q.vector)
			if q.writeErr != unix.EINTR {
				return true
			}
		}
	}
	return q, nil
}

// transmit carries what the device hands out until the queue is stopped (nil).
func (q *queue) transmit() error {
	err := q.raw.Read(q.drain())
	switch {
	case q.stopped.Load():
		return nil
	case q.failure != nil:
		return q.failure
	}
	return fmt.Errorf("read %s: %w", q.file.Name(), err)
}

// drain returns the loop over packets. It is left, with false, when there is
// none, and for good when the queue has stopped or failed.
func (q *queue) drain() func(fd uintptr) bool {
	var known *table
	used := 0
	flush := func() bool {
		used = 0
		q.failure = q.carrier.flush()
		return q.failure == nil
	}
	return func(fd uintptr) bool {
		for !q.stopped.Load() {
			if t := q.tables.Load(); t != known {
				if !flush() {
					return true
				}
				q.carrier.use(t)
				known = t
			}
			start := q.buffer[used:]
			n, err := unix.Read(int(fd), start[room:room+maxFrame])
			switch {
			case err == unix.EAGAIN:
				if !flush() {
					return true
				}
				return false
			case err == unix.EINTR:
				continue
			case err == unix.EBADFD || err == nil && n == 0:
				err = errDeviceGone
				fallthrough
			case err != nil:
				q.failure = fmt.Errorf("read %s: %w", q.file.Name(), err)
				return true
			}
			if n <= linux.VnetHeaderLen {
				continue
			}
			to := known.route(start[room+linux.VnetHeaderLen : room+n])
			if to == nil {
				q.counts.unroutable.Add(1)
				continue
			}
			q.carrier.send(to, start[:room+n])
			// The next frame begins where a word does.
			used += (room + n + 15) &^ 15
			if used >= batchBytes || q.carrier.full() {
				if !flush() {
					return true
				}
			}
		}
		return true
	}
}

// write delivers a packet to the device.
func (q *queue) write(vector []unix.Iovec) error {
	q.vector, q.writeErr = vector, nil
	if err := q.raw.Write(q.writing); err != nil {
		if q.stopped.Load() || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return fmt.Errorf("write %s: %w", q.file.Name(), errors.Join(err, errDeviceGone))
	}
	if q.writeErr == unix.EBADFD || errors.Is(q.writeErr, io.EOF) {
		return fmt.Errorf("write %s: %w", q.file.Name(), errDeviceGone)
	}
	return q.writeErr
}

// stop ends transmit and the carrier. It can be called twice.
func (q *queue) stop() {
	q.stopped.Store(true)
	_ = q.file.SetDeadline(time.Unix(1, 0)) // fails only when closed
	q.carrier.stop()
}
