package containerlog

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"syscall"
)

// logName matches the log files in a container's directory. The runtime writes to N.log
// after the container's Nth restart. The kubelet rotates the file by renaming it to
// N.log.TIME. At the next rotation, it compresses N.log.TIME to N.log.TIME.gz. By then
// the Watcher has opened the original, unless the Watcher's process was restarted.
var logName = regexp.MustCompile(`^(\d+)\.log(?:\.(\d{8}-\d{6})(\.gz)?)?$`)

// errUnseen is the cause of the loss of a file that was deleted too soon.
var errUnseen = errors.New("it was deleted before it could be opened")

// container is the log of one container of one pod, over all its restarts.
type container struct {
	root *os.Root
	path string // relative to root

	mu sync.Mutex
	// segments is sorted by the time when the files were written.
	segments []*segment
	// changed is closed when there may be more to read.
	changed chan struct{}
	// gone reports whether the directory was deleted.
	gone bool
	// ended reports whether the container has ended, so that readers end with its log.
	ended bool
	// polled reports whether the kernel cannot watch the directory, so that no event
	// reports a deletion.
	polled bool
	// blocked is the error of a scan that could not open all files, or nil. blockedSince is
	// the time of the first of these scans.
	blocked      error
	blockedSince time.Time
	// readTimeout is the time after which a file that cannot be read or opened is lost.
	readTimeout time.Duration

	readers int
	// unread is the time when the last reader ended.
	unread time.Time

	watching sync.Mutex // taken before Watcher.mu
	// armed reports whether the watch of the directory includes writeEvents.
	armed bool
	// setEvents sets the events that the directory is watched for. It reports
	// whether the watch is new.
	setEvents func(mask uint32) (isNew bool, err error)
}

func newContainer(root *os.Root, path string, setEvents func(mask uint32) (bool, error)) *container {
	return &container{root: root, path: path, changed: make(chan struct{}), unread: time.Now(), setEvents: setEvents, readTimeout: readTimeout}
}

// watch starts or updates the watch of the directory. If the watch is new, it also scans
// the directory.
func (c *container) watch() error {
	c.watching.Lock()
	defer c.watching.Unlock()
	return c.watchLocked()
}

func (c *container) watchLocked() error {
	mask := uint32(logEvents)
	if c.armed {
		mask |= writeEvents
	}
	isNew, err := c.setEvents(mask)
	c.mu.Lock()
	c.polled = unlessGone(err) != nil
	c.mu.Unlock()
	if isNew {
		c.scan() // files may be older than the watch
	}
	return err
}

// arm requests an event for the next write to a log. It reports whether the caller must
// read once more before it waits, because earlier writes caused no event.
//
// With an event for each write, a line of a log would cost the runtime 3.3
// microseconds instead of 1.0 (measured with Linux 6.18).
func (c *container) arm() (look bool, err error) {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.armed {
		return false, nil
	}
	c.armed = true
	if err := c.watchLocked(); err != nil {
		c.armed = false
		return false, err
	}
	return true, nil
}

// disarm ends the events for writes. The next reader that waits calls arm again.
func (c *container) disarm() {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.armed {
		c.armed = false
		_ = c.watchLocked() // the directory may be gone
	}
}

// unwatched records that the kernel has removed the watch of the directory.
func (c *container) unwatched() {
	c.watching.Lock()
	defer c.watching.Unlock()
	c.armed = false
}

// wake makes the readers read again.
func (c *container) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

// end records that the container has ended, so that the readers end with its log.
func (c *container) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.wake()
}

// scan opens new files, and records the new names of renamed ones.
func (c *container) scan() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scanLocked()
}

func (c *container) scanLocked() {
	err := c.openNew()
	if c.blocked == nil {
		c.blockedSince = time.Now()
	}
	c.blocked = err
	slices.SortStableFunc(c.segments, (*segment).order)
}

// openNew opens the files that are not open yet, the oldest first. It stops at a
// file that cannot be opened, because a reader counts segments.
func (c *container) openNew() error {
	dir, err := c.root.Open(c.path)
	if err != nil {
		c.gone = errors.Is(err, os.ErrNotExist)
		return unlessGone(err)
	}
	c.gone = false
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return unlessGone(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !logName.MatchString(name) })
	slices.Sort(names) // a compressed file comes after its original
	slices.SortStableFunc(names, func(a, b string) int {
		first, _ := named(a)
		second, _ := named(b)
		return first.order(second)
	})
	for _, name := range names {
		if err := unlessGone(c.openNamed(name)); err != nil {
			return err
		}
	}
	return nil
}

// deleted handles the deletion of a file. Its output is lost if the file was not opened
// before.
func (c *container) deleted(name string) {
	if !logName.MatchString(name) {
		return
	}
	lost, compressed := named(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	opened := func(s *segment) bool {
		_, linked := s.size()
		unseen := s.rotated == "" && s.file != nil && !linked // its renaming was not seen
		return s.generation == lost.generation && (s.rotated == lost.rotated || unseen)
	}
	if compressed || slices.ContainsFunc(c.segments, opened) {
		return
	}
	cause := c.blocked
	if cause == nil {
		cause = errUnseen
	}
	lost.lose(cause)
	c.segments = append(c.segments, lost)
	slices.SortStableFunc(c.segments, (*segment).order)
}

// addUnseen counts the runs between the last one and a new one as lost if no event could
// tell of the deletion of their files.
func (c *container) addUnseen(generation int) {
	if !c.polled || len(c.segments) == 0 {
		return
	}
	last := slices.MaxFunc(c.segments, func(a, b *segment) int { return a.generation - b.generation })
	if generation > last.generation+1 {
		lost := &segment{generation: last.generation + 1}
		lost.lose(errUnseen)
		c.segments = append(c.segments, lost)
	}
}

// named returns a segment without a file for a name that logName matches, and whether
// the kubelet has compressed the file.
func named(name string) (s *segment, compressed bool) {
	match := logName.FindStringSubmatch(name)
	generation, _ := strconv.Atoi(match[1])
	return &segment{generation: generation, rotated: match[2]}, match[3] != ""
}

// openNamed opens a file of the directory if it is not open yet.
func (c *container) openNamed(name string) error {
	s, compressed := named(name)
	if compressed && !c.wants(s) {
		return nil
	}
	path := filepath.Join(c.path, name)
	info, err := c.root.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*unixStat)
	if !ok {
		return nil
	}
	same := func(s *segment) bool {
		return s.file != nil && s.ino == stat.Ino && s.device == uint64(stat.Dev)
	}
	if i := slices.IndexFunc(c.segments, same); i >= 0 {
		c.segments[i].rotated = s.rotated
		return nil
	}
	if err := s.open(c.root, path); err != nil {
		return err
	}
	if compressed {
		if err := s.openCompressed(); err != nil {
			s.lose(err)
		} else if c.has(s) {
			s.file.Close()
			return nil
		}
	}
	s.readStamp()
	c.addUnseen(s.generation)
	c.segments = append(c.segments, s)
	return nil
}

// unlessGone returns nil if a file was renamed or deleted: another event reports it.
func unlessGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// wants reports whether a compressed file must be opened. While there is a reader, it
// must not, because a reader holds the index of its segment.
func (c *container) wants(compressed *segment) bool {
	known := func(s *segment) bool { return s.generation == compressed.generation && s.rotated == compressed.rotated }
	return c.readers == 0 && !slices.ContainsFunc(c.segments, known)
}

// has reports whether the original of a compressed file is open. It compares time stamps,
// because the original may have been renamed unseen.
func (c *container) has(s *segment) bool {
	return slices.ContainsFunc(c.segments, func(other *segment) bool { return other.generation == s.generation && other.stamp == s.stamp })
}

// start returns the segment and the offset of the next byte after a position. lost
// reports whether the position's file no longer exists.
func (c *container) start(p Position) (index int, offset int64, lost bool) {
	if p == (Position{}) {
		return 0, 0, false
	}
	for i, s := range c.segments {
		s.readStamp()
		if s.generation == p.Generation && (s.stamp == p.Segment || p.Segment == "") {
			if s.file != nil {
				s.sent, s.taken = max(s.sent, p.Offset), max(s.taken, p.Offset)
			}
			return i, p.Offset, false
		}
	}
	index = slices.IndexFunc(c.segments, func(s *segment) bool { return s.after(p) })
	if index < 0 {
		index = len(c.segments)
	}
	return index, 0, true
}

// behind returns the number of bytes after an offset of a segment, including the segments
// after it.
func (c *container) behind(index int, offset int64) int64 {
	total := -offset
	for _, s := range c.segments[min(index, len(c.segments)):] {
		size, _ := s.size()
		total += size
	}
	return max(0, total)
}

// prune drops deleted files that nobody is going to read: a client has received them to
// their end more than grace ago, or the container has had no reader for longer than grace.
func (c *container) prune(now time.Time, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.segments {
		size, named := s.size()
		if s.file == nil || named {
			continue
		}
		if s.deleted.IsZero() {
			s.deleted = now
		}
		read := s.sent >= size && now.Sub(s.sentAt) > grace
		left := c.readers == 0 && now.Sub(c.unread) > grace && now.Sub(s.deleted) > grace
		if read || left {
			s.drop()
		}
	}
}

// finished reports whether the Watcher can forget the container: its directory was deleted,
// no file is open, and it has had no reader for 10 times grace.
func (c *container) finished(now time.Time, grace time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := slices.ContainsFunc(c.segments, func(s *segment) bool { return s.file != nil })
	return c.gone && !open && c.readers == 0 && now.Sub(c.unread) > 10*grace
}

func (c *container) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.segments {
		if s.file != nil {
			s.file.Close()
			s.file = nil
		}
	}
}

type unixStat = syscall.Stat_t
