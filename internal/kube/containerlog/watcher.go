package containerlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// DefaultSpool bounds the deleted files that a node keeps for clients
	// that have not read them yet, in bytes.
	DefaultSpool = 1 << 30
	// defaultGrace is the time that a deleted file without a reader stays open.
	defaultGrace = time.Minute
	// prunePeriod is the time between two calls of prune.
	prunePeriod = time.Second
	// scanPeriod is the time between two scans of directories that the kernel
	// cannot watch.
	scanPeriod = 200 * time.Millisecond
)

// Watcher opens the log files NAMESPACE_POD_UID/CONTAINER/N.log below a directory of the
// kubelet as soon as they appear, so that they can be read after their deletion. It uses
// one inotify instance, with a watch for each pod and each container.
type Watcher struct {
	root *os.Root
	log  *slog.Logger
	// Spool and Grace may be set before Run.
	Spool int64
	Grace time.Duration
	// Unwritten is the directory of the files POD-DIRECTORY/CONTAINER. The length of
	// each is the number of bytes that the runtime could not write to the log. If
	// Unwritten is empty, the Watcher does not report them.
	Unwritten string

	inotify *os.File // nil if the kernel refuses an instance

	mu         sync.Mutex
	containers map[string]*container
	watched    map[int32]string // directories relative to root, by watch descriptor
	watches    map[string]int32
	// blind reports whether the kernel refused to watch a directory. Then all directories
	// are scanned periodically.
	blind bool

	buffers sync.Pool // of *[chunk]byte
}

// NewWatcher returns a Watcher of the logs below a directory, after a first scan. It
// returns an error if the directory does not exist.
func NewWatcher(dir string, log *slog.Logger) (*Watcher, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of logs: %w", err)
	}
	w := &Watcher{
		root: root, log: log, Spool: DefaultSpool, Grace: defaultGrace,
		containers: map[string]*container{},
		watched:    map[int32]string{}, watches: map[string]int32{},
		buffers: sync.Pool{New: func() any { return new([chunk]byte) }},
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("directories of logs are read five times a second: the kernel cannot watch them", "error", err)
		w.blind = true
	} else {
		w.inotify = os.NewFile(uintptr(fd), "inotify")
	}
	w.scan()
	return w, nil
}

// Run watches for new logs until ctx ends, and returns nil then. It returns an error if
// it cannot read inotify events.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.close()
	events := make(chan error, 1)
	if w.inotify != nil {
		go func() { events <- w.readEvents() }()
		defer w.inotify.Close()
	}
	prune, scan := time.NewTicker(prunePeriod), time.NewTicker(scanPeriod)
	defer prune.Stop()
	defer scan.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-events:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch the directory of logs: %w", err)
		case now := <-prune.C:
			w.prune(now)
		case <-scan.C:
			w.mu.Lock()
			blind := w.blind
			w.mu.Unlock()
			if blind {
				w.scan()
				w.wakeAll()
			}
		}
	}
}

func (w *Watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.containers {
		c.close()
	}
	w.root.Close()
}

// dirEvents are the events for new names in a directory. logEvents, for a container's
// directory, add those for removed names. container.arm adds writeEvents while a reader
// waits.
const (
	dirEvents   = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	logEvents   = dirEvents | unix.IN_MOVED_FROM | unix.IN_DELETE
	writeEvents = unix.IN_MODIFY | unix.IN_CLOSE_WRITE
)

// watch adds or updates the watch of a directory. depth is 0 for the root, 1 for a pod's
// directory, and 2 for a container's.
func (w *Watcher) watch(dir string, depth int) {
	var err error
	if depth == 2 {
		err = w.container(dir).watch()
	} else {
		_, err = w.setEvents(dir, dirEvents)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !errors.Is(err, unix.ENOENT) && !w.blind {
		w.blind = true
		w.log.Warn("directories of logs are read five times a second: the kernel cannot watch them", "error", err)
	}
}

// setEvents watches a directory for the events of a mask, or changes the mask of
// its watch. It reports whether the watch is new.
func (w *Watcher) setEvents(dir string, mask uint32) (isNew bool, err error) {
	if w.inotify == nil {
		return false, unix.ENOSYS
	}
	// The lock keeps watches and w.watches consistent if there are two calls at once.
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := unix.InotifyAddWatch(int(w.inotify.Fd()), filepath.Join(w.root.Name(), dir), mask)
	if err != nil {
		return false, err
	}
	before, known := w.watches[dir]
	w.watched[int32(wd)], w.watches[dir] = dir, int32(wd) // the watch of the directory that has the name now
	return !known || before != int32(wd), nil
}

// scan watches and scans all directories.
func (w *Watcher) scan() {
	w.enter("", 0, true)
}

// enter watches a directory and scans it, because its files may be older than the watch.
// It also enters the unwatched directories below it, or all of them if all is set. A
// deleted directory keeps its watch while one of its files is open. Its name may belong
// to a new directory by then, which only a call with all finds.
func (w *Watcher) enter(dir string, depth int, all bool) {
	w.watch(dir, depth)
	if depth == 2 {
		c := w.container(dir)
		c.scan()
		c.wake()
		return
	}
	opened, err := w.root.Open(filepath.Join(".", dir))
	if err != nil {
		return
	}
	entries, _ := opened.ReadDir(-1)
	opened.Close()
	for _, entry := range entries {
		below := filepath.Join(dir, entry.Name())
		w.mu.Lock()
		_, known := w.watches[below]
		w.mu.Unlock()
		if entry.IsDir() && (all || !known) {
			w.enter(below, depth+1, all)
		}
	}
}

// container returns the container of a directory, and adds it if it is new.
func (w *Watcher) container(dir string) *container {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.containers[dir]
	if c == nil {
		c = newContainer(w.root, dir, func(mask uint32) (bool, error) { return w.setEvents(dir, mask) })
		w.containers[dir] = c
	}
	return c
}

func (w *Watcher) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.containers {
		c.wake()
	}
}

// readEvents handles events until the inotify descriptor is closed. It returns the error of
// the read.
func (w *Watcher) readEvents() error {
	buffer := make([]byte, 64<<10)
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			return err
		}
		// A directory is handled once for all of its events.
		changed, written := map[int32]bool{}, map[int32]bool{}
		made := map[string]int{} // new directories of pods and containers, and their depth
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			end := unix.SizeofInotifyEvent + int(event.Len)
			name := unix.ByteSliceToString(rest[unix.SizeofInotifyEvent:end])
			rest = rest[end:]
			switch {
			case event.Mask&unix.IN_Q_OVERFLOW != 0:
				w.scan()
				w.wakeAll()
			case event.Mask&unix.IN_IGNORED != 0:
				w.ignored(event.Wd)
			case event.Mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE) != 0:
				written[event.Wd] = true
			case event.Mask&unix.IN_ISDIR != 0:
				if dir, depth, known := w.directory(event.Wd); known && depth < 2 {
					made[filepath.Join(dir, name)] = depth + 1
				}
			default:
				if event.Mask&unix.IN_DELETE != 0 {
					w.deleted(event.Wd, name)
				}
				changed[event.Wd] = true
			}
		}
		for dir, depth := range made {
			w.enter(dir, depth, true)
		}
		for wd := range changed {
			w.handle(wd, true)
		}
		for wd := range written {
			w.handle(wd, false)
		}
	}
}

// handle handles the events of a watch. names reports whether names in the directory have
// changed; otherwise a file was written.
func (w *Watcher) handle(wd int32, names bool) {
	dir, depth, known := w.directory(wd)
	if !known {
		return
	}
	if names {
		w.enter(dir, depth, false)
	}
	if depth == 2 {
		c := w.container(dir)
		if !names {
			c.disarm()
		}
		c.wake()
	}
}

// deleted handles the deletion of a file in the directory of a watch.
func (w *Watcher) deleted(wd int32, name string) {
	if dir, depth, known := w.directory(wd); known && depth == 2 {
		w.container(dir).deleted(name)
	}
}

// directory returns the directory of a watch relative to root, and its depth.
func (w *Watcher) directory(wd int32) (dir string, depth int, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	dir, known = w.watched[wd]
	return dir, depthOf(dir), known
}

func depthOf(dir string) int {
	if dir == "" {
		return 0
	}
	if filepath.Dir(dir) == "." {
		return 1
	}
	return 2
}

// ignored handles the kernel's removal of a watch, after the directory was deleted. A new
// directory with the same name keeps its own watch.
func (w *Watcher) ignored(wd int32) {
	w.mu.Lock()
	dir, known := w.watched[wd]
	delete(w.watched, wd)
	last := known && w.watches[dir] == wd
	if last {
		delete(w.watches, dir)
	}
	c := w.containers[dir]
	w.mu.Unlock()
	if last && c != nil {
		c.unwatched()
		c.scan()
		c.wake()
	}
}

// prune drops deleted files that nobody is going to read. If the remaining deleted files
// have more bytes than Spool, it drops more of them: first files of containers
// without a reader, then the others, each in the order of their deletion.
func (w *Watcher) prune(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	type kept struct {
		c     *container
		s     *segment
		bytes int64
		idle  bool
	}
	var all []kept
	total := int64(0)
	for dir, c := range w.containers {
		c.prune(now, w.Grace)
		if c.finished(now, w.Grace) {
			delete(w.containers, dir)
			continue
		}
		c.mu.Lock()
		for _, s := range c.segments {
			if size, named := s.size(); s.file != nil && !named {
				all = append(all, kept{c, s, size, c.readers == 0})
				total += size
			}
		}
		c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b kept) int {
		if a.idle != b.idle {
			if a.idle {
				return -1
			}
			return 1
		}
		return a.s.deleted.Compare(b.s.deleted)
	})
	for _, k := range all {
		if total <= w.Spool {
			return
		}
		k.c.mu.Lock()
		k.s.drop()
		k.c.mu.Unlock()
		k.c.wake()
		total -= k.bytes
	}
}
