// Package freespace keeps a part of a file system free while images are written to
// it, because an archive of a few megabytes may unpack to more than the disk holds.
// It does not remove files to make room. Package budget bounds what an image may unpack to.
package freespace

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNoSpace reports a write that would use the reserved space.
var ErrNoSpace = errors.New("it does not fit")

const (
	// interval is the number of bytes between two checks of the file system.
	interval = 16 << 20
	// A part of 1/share of the file system stays free: at least leastFree and at most
	// mostFree bytes, but never more than a quarter of the space that is free at first.
	// The kubelet evicts pods when less than 256 MiB are free.
	share     = 20
	leastFree = 512 << 20
	mostFree  = 8 << 30
	// urgentFree bounds the bytes that stay free when pods wait for the data. The kubelet's
	// threshold is higher, so a full disk first evicts pods, and only then fails reads.
	urgentFree = 64 << 20
)

// space holds the free and total bytes and inodes of a file system.
type space struct{ free, total, freeInodes, inodes uint64 }

// reserve returns the bytes and inodes that must stay free.
func (s space) reserve() (bytes, inodes uint64) {
	return min(s.free/4, max(s.total/share, leastFree), mostFree), min(s.freeInodes/4, s.inodes/share)
}

// Guard watches the file system of a directory. It is safe for concurrent use.
type Guard struct {
	dir           string
	look          func(dir string) (space, error)
	bytes, inodes uint64 // must stay free
	packed        bool   // the data is packed, for messages

	mu      sync.Mutex
	all     int64 // bytes counted so far
	pending int   // bytes since the last check
}

// Watch returns a guard for a directory that will receive unpacked data.
func Watch(dir string) (*Guard, error) { return watch(dir, lookAt) }

func watch(dir string, look func(string) (space, error)) (*Guard, error) {
	now, err := look(dir)
	if err != nil {
		return nil, err
	}
	g := &Guard{dir: dir, look: look}
	g.bytes, g.inodes = now.reserve()
	return g, nil
}

// Packed returns a guard for packed data that keeps the same part of the file system free.
func (g *Guard) Packed() *Guard {
	return &Guard{dir: g.dir, look: g.look, bytes: g.bytes, inodes: g.inodes, packed: true}
}

// Urgent returns a guard for data that running pods wait for. It keeps only a small part of
// the file system free.
func (g *Guard) Urgent() *Guard {
	return &Guard{dir: g.dir, look: g.look, bytes: min(g.bytes, urgentFree)}
}

func lookAt(dir string) (space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return space{}, fmt.Errorf("look for free space in %s: %w", dir, err)
	}
	block := uint64(st.Frsize)
	return space{st.Bavail * block, st.Blocks * block, st.Ffree, st.Files}, nil
}

// add counts bytes that are about to be written. Its error wraps ErrNoSpace if too little
// would stay free.
func (g *Guard) add(n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all += int64(n)
	if g.pending += n; g.pending < interval {
		return nil
	}
	now, err := g.look(g.dir)
	switch {
	case err != nil:
		return err
	case now.free < g.bytes:
		has := "unpacked, it has"
		if g.packed {
			has = "it has"
		}
		return fmt.Errorf("%w: %s more than %d MB, and the file system of %s keeps %d MB free; check the image, or name a directory with more space", ErrNoSpace, has, g.all>>20, g.dir, g.bytes>>20)
	case now.freeInodes < g.inodes:
		return fmt.Errorf("%w: the file system of %s keeps %d inodes free for further files; check the image, or name a directory with more of them", ErrNoSpace, g.dir, g.inodes)
	}
	g.pending = 0
	return nil
}

// Room returns an error that wraps ErrNoSpace if too little would stay free after a write
// of n bytes. It counts nothing.
func (g *Guard) Room(n int64) error {
	now, err := g.look(g.dir)
	if err == nil && now.free < g.bytes+uint64(n) {
		err = fmt.Errorf("%w: it needs %d bytes more, and the file system of %s keeps %d MB free; check the image, or name a directory with more space", ErrNoSpace, n, g.dir, g.bytes>>20)
	}
	return err
}

// Reader returns a reader that counts the bytes it reads, because they are written next.
func (g *Guard) Reader(from io.Reader) io.Reader { return reader{g, from} }

type reader struct {
	guard *Guard
	from  io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if full := r.guard.add(n); full != nil {
		return 0, full // callers like io.ReadFull ignore the error of a complete read
	}
	return n, err
}

// Writer returns a writer that counts the bytes it writes.
func (g *Guard) Writer(to io.Writer) io.Writer { return writer{g, to} }

type writer struct {
	guard *Guard
	to    io.Writer
}

func (w writer) Write(p []byte) (int, error) {
	if err := w.guard.add(len(p)); err != nil {
		return 0, err
	}
	return w.to.Write(p)
}
