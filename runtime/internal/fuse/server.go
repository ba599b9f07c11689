// Package fuse serves trees of image layers to the kernel, as the server of a FUSE
// mount that another process has made. It never opens the files of layers.
//
// A server may be killed at any time. Another server continues its work if some process
// keeps two descriptors open: /dev/fuse, and a memory file into which requests are read. The kernel hands out each request only once, so the successor
// finds it in that file.
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
	"berth.dev/berth/runtime/internal/fusewire"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/tree"
)

const (
	// workers is the number of requests that one mount serves at once, each in its own
	// worker. Slow storage needs more workers than there are processors.
	workers = 8
	// mostWorkers bounds the workers of one mount while all others are blocked, for
	// example by reads from a registry.
	mostWorkers = 64
	// mostExtra bounds the workers of all mounts together, not counting the first
	// ones of each mount, see workers.
	mostExtra = 256
	// SlotsSize is the size of the memory file in bytes.
	SlotsSize = mostWorkers * fusewire.RequestSize
)

// Mount describes a mount to serve.
type Mount struct {
	Tree *tree.Tree
	// Device is the mount's /dev/fuse. Slots is the memory file, with requests that
	// were not answered yet. The caller closes both.
	Device, Slots *os.File
	// Squash makes user and group 0 the owners of all files. Otherwise owners are
	// fitted to IDs, the IDs of the mount's user namespace.
	Squash bool
	IDs    idmap.Map
	// Extra limits the additional workers of all mounts.
	Extra *Extra
	Log   *slog.Logger
	// Refused, unless nil, is called with the error of a request that was refused
	// to protect this process.
	Refused func(error)
}

// Extra counts the workers of all mounts beyond the first ones of each, see workers.
// Workers are threads, and the number of a user's threads is limited.
type Extra struct{ now atomic.Int32 }

func (e *Extra) take() bool {
	if e.now.Add(1) <= mostExtra {
		return true
	}
	e.now.Add(-1)
	return false
}

// Serve answers requests until the file system is unmounted.
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
	c := pool{Mount: m}
	c.mu.Lock()
	for i := range mostWorkers {
		slot := slots[i*fusewire.RequestSize : (i+1)*fusewire.RequestSize]
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

// pending finds the slots with a request that a predecessor had received. It reads
// the file, because access to mapped memory would allocate pages.
func (m Mount) pending() (slots [mostWorkers]bool, err error) {
	var begin [4]byte
	for i := range slots {
		if _, err := m.Slots.ReadAt(begin[:], int64(i)*fusewire.RequestSize); err != nil {
			return slots, fmt.Errorf("look for requests of a predecessor: %w", err)
		}
		slots[i] = fusewire.Order.Uint32(begin[:]) != 0
	}
	return slots, nil
}

// pool is the set of workers of a mount.
type pool struct {
	Mount
	group sync.WaitGroup

	mu sync.Mutex
	// all counts the workers; idle counts the workers that wait for requests.
	all, idle int
	// free holds the slots without a worker.
	free     [][]byte
	problems []error
}

// start starts a worker. The caller holds the lock, and has reserved a worker beyond the
// first ones from Extra.
func (c *pool) start(slot []byte) {
	c.all++
	w := worker{pool: c, fd: int(c.Device.Fd()), slot: slot}
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

// rest reports whether a worker should wait for a request, and counts it as idle if so.
// A worker should end instead if enough others wait.
func (c *pool) rest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle >= workers {
		return false
	}
	c.idle++
	return true
}

// rise ends a worker's wait. If the worker received a request, and no idle worker is
// left, another one is started.
func (c *pool) rise(received bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle--
	if last := len(c.free) - 1; received && c.idle == 0 && last >= 0 && (c.all < workers || c.Extra.take()) {
		c.start(c.free[last])
		c.free = c.free[:last]
	}
}

type worker struct {
	*pool
	fd   int
	slot []byte
	// out holds the reply: a header and its body.
	out []byte
}

// work answers one request after the other, beginning with the request of a
// predecessor, if any.
func (w *worker) work() error {
	// Allocate the memory before reading into it. A process that is being killed
	// gets no more memory, and the request would fail. MADV_POPULATE_WRITE needs
	// Linux 5.14.
	for page := 0; page < len(w.slot); page += os.Getpagesize() {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&w.slot[page])), 0)
	}
	for {
		if fusewire.Order.Uint32(w.slot) != 0 {
			w.handle()
			fusewire.Order.PutUint32(w.slot, 0)
		}
		if !w.rest() {
			return nil
		}
		n, err := unix.Read(w.fd, w.slot)
		w.rise(n > 0)
		switch {
		case n > 0, errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case errors.Is(err, unix.ENOENT): // interrupted before it was handed out
			fusewire.Order.PutUint32(w.slot, 0)
		case err == nil, errors.Is(err, unix.ENODEV), errors.Is(err, unix.ECONNABORTED):
			return nil // unmounted
		default:
			return fmt.Errorf("read request: %w", err)
		}
	}
}

func (w *worker) handle() {
	r, ok := fusewire.ParseRequest(w.slot)
	if !ok || r.Unanswered() {
		return
	}
	w.out = append(w.out[:0], make([]byte, fusewire.OutHeader)...)
	errno := w.guard(r)
	w.out = r.Finish(w.out, errno)
	// The kernel rejects replies that nobody waits for any more.
	_, _, _ = unix.Syscall(unix.SYS_WRITE, uintptr(w.fd), uintptr(unsafe.Pointer(unsafe.SliceData(w.out))), uintptr(len(w.out)))
}

// guard answers a request, and turns a panic into EIO. A request that ends this process
// would also end its successors.
func (w *worker) guard(r fusewire.Request) (errno unix.Errno) {
	defer func() {
		if reason := recover(); reason != nil {
			w.Log.Error(fmt.Sprintf("request %d of node %d: %v\n%s", r.Opcode, r.Node, reason, debug.Stack()))
			errno = unix.EIO
		}
	}()
	return w.answer(r)
}

// answer appends the body of the reply to out, and returns the error number, or 0.
func (w *worker) answer(r fusewire.Request) (errno unix.Errno) {
	switch r.Opcode {
	case fusewire.OpInit:
		w.out, errno = r.AppendInit(w.out, wantedFlags, background)
	case fusewire.OpLookup:
		errno = w.lookup(r)
	case fusewire.OpGetattr:
		errno = w.getattr(r)
	case fusewire.OpReadlink:
		errno = w.readlink(r)
	case fusewire.OpRead:
		errno = w.read(r)
	case fusewire.OpReaddir:
		errno = w.readdir(r, false)
	case fusewire.OpReaddirplus:
		errno = w.readdir(r, true)
	case fusewire.OpGetxattr, fusewire.OpListxattr:
		errno = w.xattr(r)
	case fusewire.OpStatfs:
		w.statfs()
	case fusewire.OpOpen, fusewire.OpOpendir:
		// After ENOSYS the kernel opens files without asking, and keeps the data
		// that it has read from them.
		errno = unix.ENOSYS
	default:
		errno = unix.ENOSYS
	}
	return errno
}

// errnoOf returns the error number for the kernel: ESTALE for a node that does not exist,
// and EIO for other errors, which it logs.
func (w *worker) errnoOf(r fusewire.Request, err error) unix.Errno {
	if errors.Is(err, tree.ErrNotFound) {
		return unix.ESTALE
	}
	if (errors.Is(err, tree.ErrLinks) || errors.Is(err, erofs.ErrTooLarge)) && w.Refused != nil {
		w.Refused(err)
	}
	w.Log.Error(fmt.Sprintf("request %d of node %d: %v", r.Opcode, r.Node, err))
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

func (w *worker) lookup(r fusewire.Request) unix.Errno {
	name, ok := r.Name(0)
	if !ok {
		return unix.EINVAL
	}
	n, err := w.Tree.Lookup(r.Node, name)
	switch {
	case errors.Is(err, tree.ErrNotFound):
		// The kernel may cache the absence of the name.
		w.out = append(fusewire.AppendNumbers(w.out, 0, 0, fusewire.Forever), make([]byte, fusewire.EntrySize-24)...)
	case err != nil:
		return w.errnoOf(r, err)
	default:
		w.out = fusewire.AppendEntry(w.out, attr(w.owned(n)))
	}
	return 0
}

func (w *worker) getattr(r fusewire.Request) unix.Errno {
	n, err := w.Tree.Node(r.Node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	w.out = fusewire.AppendAttr(w.out, attr(w.owned(n)))
	return 0
}

func (w *worker) readlink(r fusewire.Request) unix.Errno {
	n, err := w.Tree.Node(r.Node)
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

func (w *worker) read(r fusewire.Request) unix.Errno {
	offset, size, ok := r.ReadRange()
	if !ok {
		return unix.EINVAL
	}
	n, err := w.Tree.Node(r.Node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	if n.Mode&erofs.TypeMask != erofs.TypeRegular {
		return unix.EINVAL
	}
	size = int(max(0, min(int64(size), n.Size-offset)))
	if need := fusewire.OutHeader + size; cap(w.out) < need {
		w.out = append(make([]byte, 0, max(need, 160<<10)), w.out...)
	}
	into := w.out[fusewire.OutHeader : fusewire.OutHeader+size]
	got, err := w.Tree.ReadAt(n, into, offset)
	if err != nil {
		return w.errnoOf(r, err)
	}
	w.out = w.out[:fusewire.OutHeader+got]
	return 0
}

// maxChildEntries bounds the entries of subdirectories that are read for one reply. Nothing
// ends a process that waits for a reply.
const maxChildEntries = 1 << 18

// readdir lists a directory from an offset on. The offset is the number of entries
// listed before, including "." and "..". A reply may have fewer entries than fit.
func (w *worker) readdir(r fusewire.Request, plus bool) unix.Errno {
	offset, size, ok := r.ReadRange()
	if !ok {
		return unix.EINVAL
	}
	dir, err := w.Tree.Dir(r.Node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	extra := 0
	if plus {
		extra = fusewire.EntrySize
	}
	limit := fusewire.OutHeader + size
	read := 0
	for at := offset; at < int64(len(dir.Entries))+2 && read <= maxChildEntries; at++ {
		e := tree.Entry{Name: ".", ID: r.Node, Type: erofs.TypeDir}
		switch at {
		case 0:
		case 1:
			e.Name, e.ID = "..", dir.Parent
		default:
			e = dir.Entries[at-2]
		}
		if len(w.out)+extra+fusewire.DirentLength(e.Name) > limit {
			break
		}
		if plus && at < 2 {
			w.out = append(w.out, make([]byte, fusewire.EntrySize)...)
		} else if plus {
			n, err := w.Tree.Child(dir, e)
			if err != nil {
				return w.errnoOf(r, err)
			}
			w.out = fusewire.AppendEntry(w.out, attr(w.owned(n)))
			read += n.Entries
		}
		w.out = fusewire.AppendDirent(w.out, e.ID, uint64(at)+1, uint32(e.Type), e.Name)
	}
	return 0
}

// xattr returns one extended attribute, or the names of all. If the kernel passes a
// size of 0, it asks only for the length.
func (w *worker) xattr(r fusewire.Request) unix.Errno {
	if !w.Tree.HasXattrs() {
		return unix.ENOSYS // the kernel does not ask again
	}
	if len(r.Body) < 8 {
		return unix.EINVAL
	}
	size := int(fusewire.Order.Uint32(r.Body))
	n, err := w.Tree.Node(r.Node)
	if err != nil {
		return w.errnoOf(r, err)
	}
	all, err := w.Tree.Xattrs(n)
	if err != nil {
		return w.errnoOf(r, err)
	}
	var value []byte
	if r.Opcode == fusewire.OpListxattr {
		for _, x := range all {
			value = append(append(value, x.Name...), 0)
		}
	} else {
		name, ok := r.Name(8)
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
		w.out = fusewire.Order.AppendUint32(w.out, uint32(len(value)))
		w.out = fusewire.Order.AppendUint32(w.out, 0)
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
	fusewire.Order.PutUint32(out[40:], erofs.BlockSize)
	fusewire.Order.PutUint32(out[44:], 255)
	fusewire.Order.PutUint32(out[48:], erofs.BlockSize)
}
