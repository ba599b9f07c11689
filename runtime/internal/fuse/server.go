// Package fuse serves trees of image layers to the kernel, as the server of a FUSE
// mount that another process has made. It never opens what it serves.
//
// A server may be killed at any time, and another one continues in its place if
// some process keeps two descriptors meanwhile: /dev/fuse, and a memory file into
// which requests are read. The kernel hands out each request only once, so the
// successor finds it in that file.
package fuse

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/tree"
)

const (
	// workers is the number of requests that one mount serves at once. Slow
	// storage needs more workers than there are processors.
	workers = 8
	// mostWorkers is the same when all are held up, as reads are by a registry.
	mostWorkers = 64
	// mostExtra bounds the workers beyond that on all mounts together.
	mostExtra = 256
	// slotSize is room for the largest request that a read-only file system
	// gets; the kernel insists on 8 KiB.
	slotSize = 8192
	// SlotsSize is the size of the memory file.
	SlotsSize = mostWorkers * slotSize
)

// Mount is a mount that is served.
type Mount struct {
	Tree *tree.Tree
	// Device is the mount's /dev/fuse, Slots the memory file with requests that
	// were not answered yet. Both stay the caller's.
	Device, Slots *os.File
	// Squash shows everything as the property of user and group 0. Otherwise owners
	// are fitted to IDs, the ids of the mount's user namespace.
	Squash bool
	IDs    idmap.Map
	// Extra is that of all mounts.
	Extra *Extra
	Log   *slog.Logger
	// Refused is called with the error of a request that is refused to protect
	// this process, if it is not nil.
	Refused func(error)
}

// Extra are the workers of all mounts beyond the first few of each: threads, of
// which a user has a limited number.
type Extra struct{ now atomic.Int32 }

func (e *Extra) take() bool {
	if e.now.Add(1) <= mostExtra {
		return true
	}
	e.now.Add(-1)
	return false
}

// Serve answers requests until the file system is no longer mounted.
func (m Mount) Serve() error {
	pending, err := m.pending()
	if err != nil {
		return err
	}
	slots, err := unix.Mmap(int(m.Slots.Fd()), 0, SlotsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the requests of a mount: %w", err)
	}
	defer unix.Munmap(slots)
	c := crew{Mount: m}
	c.mu.Lock()
	for i := range mostWorkers {
		slot := slots[i*slotSize : (i+1)*slotSize]
		switch {
		case i < workers:
			c.start(slot)
		case pending[i]:
			c.Extra.now.Add(1)
			c.start(slot)
		default:
			c.free = append(c.free, slot)
		}
	}
	c.mu.Unlock()
	c.group.Wait()
	return errors.Join(c.problems...)
}

// pending are the slots with a request that a predecessor had taken. The file is
// read: to look at memory would take some.
func (m Mount) pending() (slots [mostWorkers]bool, err error) {
	var begin [4]byte
	for i := range slots {
		if _, err := m.Slots.ReadAt(begin[:], int64(i)*slotSize); err != nil {
			return slots, fmt.Errorf("look for requests of a predecessor: %w", err)
		}
		slots[i] = order.Uint32(begin[:]) != 0
	}
	return slots, nil
}

// crew are the workers of a mount.
type crew struct {
	Mount
	group sync.WaitGroup

	mu sync.Mutex
	// all counts the workers; idle counts the workers that wait for requests.
	all, idle int
	free      [][]byte
	problems  []error
}

// start starts a worker. Beyond the first few it has been taken of Extra.
func (c *crew) start(slot []byte) {
	c.all++
	w := worker{crew: c, fd: int(c.Device.Fd()), slot: slot}
	c.group.Go(func() {
		err := w.work()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.all > workers {
			c.Extra.now.Add(-1)
		}
		c.all--
		c.free = append(c.free, slot)
		if err != nil {
			c.problems = append(c.problems, err)
		}
	})
}

// rest reports whether a worker should wait for a request. It should not if
// enough workers wait.
func (c *crew) rest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle >= workers {
		return false
	}
	c.idle++
	return true
}

// rise is called by a worker that has waited. Another one takes the place of the
// last, if it is going to work.
func (c *crew) rise(to bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle--
	if last := len(c.free) - 1; to && c.idle == 0 && last >= 0 && (c.all < workers || c.Extra.take()) {
		c.start(c.free[last])
		c.free = c.free[:last]
	}
}

type worker struct {
	*crew
	fd   int
	slot []byte
	// out is the answer's header and what follows it.
	out []byte
}

// work answers one request after the other, first the one that a predecessor
// had taken.
func (w *worker) work() error {
	// In place before it is read into: a process that is being killed gets no more
	// memory, and the request would fail. MADV_POPULATE_WRITE is of Linux 5.14.
	for page := 0; page < len(w.slot); page += os.Getpagesize() {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&w.slot[page])), 0)
	}
	for {
		if order.Uint32(w.slot) != 0 {
			w.handle()
			order.PutUint32(w.slot, 0)
		}
		if !w.rest() {
			return nil
		}
		n, err := unix.Read(w.fd, w.slot)
		w.rise(n > 0)
		switch {
		case n > 0, errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case errors.Is(err, unix.ENOENT): // interrupted before it was handed out
			order.PutUint32(w.slot, 0)
		case err == nil, errors.Is(err, unix.ENODEV), errors.Is(err, unix.ECONNABORTED):
			return nil // unmounted
		default:
			return fmt.Errorf("read request: %w", err)
		}
	}
}

// handle answers the request in the slot.
func (w *worker) handle() {
	r, ok := parseRequest(w.slot)
	if !ok {
		return
	}
	w.out = append(w.out[:0], make([]byte, outHeaderSize)...)
	errno, silent := w.guard(r)
	if silent {
		return
	}
	if errno != 0 {
		w.out = w.out[:outHeaderSize]
	}
	order.PutUint32(w.out[0:], uint32(len(w.out)))
	order.PutUint32(w.out[4:], uint32(-int32(errno)))
	order.PutUint64(w.out[8:], r.unique)
	// Nobody waits any more for what the kernel does not take.
	_, _, _ = unix.Syscall(unix.SYS_WRITE, uintptr(w.fd), uintptr(unsafe.Pointer(unsafe.SliceData(w.out))), uintptr(len(w.out)))
}

// guard makes an error of a panic: a request that ends this process would end
// its successors, too.
func (w *worker) guard(r request) (errno unix.Errno, silent bool) {
	defer func() {
		if reason := recover(); reason != nil {
			w.Log.Error(fmt.Sprintf("request %d of node %d: %v\n%s", r.opcode, r.node, reason, debug.Stack()))
			errno, silent = unix.EIO, false
		}
	}()
	return w.answer(r)
}

// answer appends the answer to out.
func (w *worker) answer(r request) (errno unix.Errno, silent bool) {
	switch r.opcode {
	case opForget, opBatchForget, opInterrupt:
		return 0, true
	case opInit:
		w.out, errno = answerInit(w.out, r)
	case opLookup:
		errno = w.lookup(r)
	case opGetattr:
		errno = w.getattr(r)
	case opReadlink:
		errno = w.readlink(r)
	case opRead:
		errno = w.read(r)
	case opReaddir:
		errno = w.readdir(r, false)
	case opReaddirplus:
		errno = w.readdir(r, true)
	case opGetxattr, opListxattr:
		errno = w.xattr(r)
	case opStatfs:
		w.statfs()
	case opOpen, opOpendir:
		// The kernel does not ask again: it opens files by itself, and keeps
		// what it has read of them.
		errno = unix.ENOSYS
	default:
		errno = unix.ENOSYS
	}
	return errno, false
}

// errnoOf says to the kernel what went wrong, and to the log what it is not to
// expect.
func (w *worker) errnoOf(r request, err error) unix.Errno {
	if errors.Is(err, tree.ErrNotFound) {
		return unix.ESTALE
	}
	if errors.Is(err, tree.ErrLinks) && w.Refused != nil {
		w.Refused(err)
	}
	w.Log.Error(fmt.Sprintf("request %d of node %d: %v", r.opcode, r.node, err))
	return unix.EIO
}

// owned returns a node with the owner that the mount shows.
func (m Mount) owned(n tree.Node) tree.Node {
	n.UID, n.GID = m.IDs.Fit(n.UID, n.GID)
	if m.Squash {
		n.UID, n.GID = 0, 0
	}
	return n
}

func (w *worker) lookup(r request) unix.Errno {
	name, ok := r.name(0)
	if !ok {
		return unix.EINVAL
	}
	n, err := w.Tree.Lookup(r.node, name)
	switch {
	case errors.Is(err, tree.ErrNotFound):
		w.out = appendNoEntry(w.out)
	case err != nil:
		return w.errnoOf(r, err)
	default:
		w.out = appendEntry(w.out, w.owned(n))
	}
	return 0
}

func (w *worker) getattr(r request) unix.Errno {
	n, err := w.Tree.Node(r.node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	w.out = order.AppendUint64(w.out, forever)
	w.out = order.AppendUint64(w.out, 0)
	w.out = appendAttr(w.out, w.owned(n))
	return 0
}

func (w *worker) readlink(r request) unix.Errno {
	n, err := w.Tree.Node(r.node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	target, err := w.Tree.Link(n)
	if err != nil {
		return w.errnoOf(r, err)
	}
	w.out = append(w.out, target...)
	return 0
}

func (w *worker) read(r request) unix.Errno {
	offset, size, ok := r.readRange()
	if !ok {
		return unix.EINVAL
	}
	n, err := w.Tree.Node(r.node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	if n.Mode&erofs.TypeMask != erofs.TypeRegular {
		return unix.EINVAL
	}
	size = int(max(0, min(int64(size), n.Size-offset)))
	if need := outHeaderSize + size; cap(w.out) < need {
		w.out = append(make([]byte, 0, max(need, 160<<10)), w.out...)
	}
	into := w.out[outHeaderSize : outHeaderSize+size]
	got, err := w.Tree.ReadAt(n, into, offset)
	if err != nil {
		return w.errnoOf(r, err)
	}
	w.out = w.out[:outHeaderSize+got]
	return 0
}

// readdir lists a directory from an offset on: the number of entries that were
// listed before, where "." and ".." are the first two.
func (w *worker) readdir(r request, plus bool) unix.Errno {
	offset, size, ok := r.readRange()
	if !ok {
		return unix.EINVAL
	}
	dir, err := w.Tree.Dir(r.node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	extra := 0
	if plus {
		extra = entrySize
	}
	limit := outHeaderSize + size
	for at := offset; at < int64(len(dir.Entries))+2; at++ {
		e := tree.Entry{Name: ".", ID: r.node, Type: erofs.TypeDir}
		switch at {
		case 0:
		case 1:
			e.Name, e.ID = "..", dir.Parent
		default:
			e = dir.Entries[at-2]
		}
		if len(w.out)+extra+direntLength(e.Name) > limit {
			break
		}
		if plus && at < 2 {
			w.out = append(w.out, make([]byte, entrySize)...)
		} else if plus {
			n, err := w.Tree.Child(dir, e)
			if err != nil {
				return w.errnoOf(r, err)
			}
			w.out = appendEntry(w.out, w.owned(n))
		}
		w.out = appendDirent(w.out, e.ID, uint64(at)+1, e.Type, e.Name)
	}
	return 0
}

// xattr answers for one extended attribute, or for their names. The size that
// the kernel gives is 0 where it wants to know how long the answer is.
func (w *worker) xattr(r request) unix.Errno {
	if !w.Tree.HasXattrs() {
		return unix.ENOSYS // the kernel does not ask again
	}
	if len(r.body) < 8 {
		return unix.EINVAL
	}
	size := int(order.Uint32(r.body))
	n, err := w.Tree.Node(r.node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	all, err := w.Tree.Xattrs(n)
	if err != nil {
		return w.errnoOf(r, err)
	}
	var value []byte
	if r.opcode == opListxattr {
		for _, x := range all {
			value = append(append(value, x.Name...), 0)
		}
	} else {
		name, ok := r.name(8)
		if !ok {
			return unix.EINVAL
		}
		found := false
		for _, x := range all {
			if x.Name == name {
				value, found = x.Value, true
			}
		}
		if !found {
			return unix.ENODATA
		}
	}
	switch {
	case size == 0:
		w.out = order.AppendUint32(w.out, uint32(len(value)))
		w.out = order.AppendUint32(w.out, 0)
	case len(value) > size:
		return unix.ERANGE
	default:
		w.out = append(w.out, value...)
	}
	return 0
}

func (w *worker) statfs() {
	at := len(w.out)
	w.out = append(w.out, make([]byte, statfsSize)...)
	out := w.out[at:]
	order.PutUint32(out[40:], erofs.BlockSize)
	order.PutUint32(out[44:], 255)
	order.PutUint32(out[48:], erofs.BlockSize)
}
