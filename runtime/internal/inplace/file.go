package inplace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/squashfs"
)

// File is the image of a layer whose content lies in a SIF file. It is safe for
// concurrent use.
type File struct {
	image *os.File
	parts []part
	header
	// changed is called once when the SIF file has changed, and once when it
	// cannot be read.
	changed                            func(error)
	reportedChange, reportedUnreadable sync.Once
	// unpackers holds unused unpackers.
	unpackers sync.Pool
	// readAt reads from the SIF file; pause waits before that is tried again.
	readAt func(file *os.File, into []byte, at int64) (int, error)
	pause  func(time.Duration)
	now    func() time.Time

	// source is the SIF file. It is opened again if its server has forgotten it.
	// Reads before the time failing are tried only once.
	mu      sync.RWMutex
	source  *os.File
	failing time.Time
	closed  bool

	cache cache
}

var errDamaged = errors.New("it is damaged")

// ErrChanged is the error for a SIF file that has changed.
var ErrChanged = errors.New("the SIF file has changed since it was imported")

const (
	// tries bounds the attempts at failing storage, with pauses of firstPause,
	// doubled each time. If a server is away for longer, readers get errors.
	// Reads within failsFast after that fail without waiting: otherwise a program
	// that goes on after an error would wait for each page.
	tries      = 4
	firstPause = 200 * time.Millisecond
	failsFast  = 10 * time.Second
)

// Is reports whether the content of a layer's image is in a SIF file.
func Is(path string) bool {
	_, err := os.Stat(path + indexExtension)
	return err == nil
}

// Open opens the image of a layer. source is the SIF file if it was open before. If it is
// nil, Open opens the file, which must not have changed. The File closes it.
func Open(path string, source *os.File, changed func(error)) (f *File, err error) {
	f = &File{source: source, changed: changed, readAt: (*os.File).ReadAt, pause: time.Sleep, now: time.Now}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open layer of a SIF file: %w", errors.Join(err, f.Close()))
		}
	}()
	if f.header, f.parts, err = readList(path + indexExtension); err != nil {
		return f, err
	}
	if _, err := squashfs.NewUnpacker(f.Packing); err != nil {
		return f, err
	}
	if f.image, err = os.Open(path); err != nil {
		return f, err
	}
	if f.source == nil {
		err = f.reopen()
	}
	return f, err
}

// Source returns the SIF file, to open the same image later.
func (f *File) Source() *os.File {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.source
}

// Close closes the files. Reads fail from then on.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	var problems []error
	for _, file := range []*os.File{f.image, f.source} {
		if file != nil {
			problems = append(problems, file.Close())
		}
	}
	return errors.Join(problems...)
}

// Image returns the image of the layer.
func (f *File) Image() (*erofs.Image, error) {
	info, err := f.image.Stat()
	if err != nil {
		return nil, err
	}
	return erofs.OpenChanging(f, info.Size())
}

// reopen opens the SIF file by its path, if it is the same file.
func (f *File) reopen() error {
	// Without O_NONBLOCK the open of a pipe with that name would never return.
	file, err := os.OpenFile(f.header.Source.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := f.isSame(file); err != nil {
		file.Close()
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		file.Close()
		return os.ErrClosed
	}
	if f.source != nil {
		f.source.Close()
	}
	f.source = file
	return nil
}

// isSame returns nil if a file is the SIF file, unchanged. Otherwise its error wraps
// ErrChanged, or the file cannot be identified.
func (f *File) isSame(file *os.File) error {
	was := f.header.Source
	now, err := identify(file)
	if err == nil && !now.same(was) {
		err = fmt.Errorf("%w: %s was file %d of %d bytes, changed at %v, and is file %d of %d bytes, changed at %v", ErrChanged, was.Path, was.Inode, was.Size, was.Modified, now.Inode, now.Size, now.Modified)
	}
	return err
}

// report calls changed once for a file that has changed, and once for a file that
// cannot be read. It returns err.
func (f *File) report(err error) error {
	once, reason := &f.reportedChange, err
	if !errors.Is(err, ErrChanged) {
		once, reason = &f.reportedUnreadable, fmt.Errorf("SIF file %s: %w", f.header.Source.Path, err)
	}
	if f.changed != nil {
		once.Do(func() { f.changed(reason) })
	}
	return err
}

// ReadAt reads unpacked content from the image, and all other content from the SIF
// file.
func (f *File) ReadAt(into []byte, at int64) (done int, err error) {
	next := sort.Search(len(f.parts), func(i int) bool { return f.parts[i].end() > at })
	for done < len(into) {
		rest, from := into[done:], at+int64(done)
		if next < len(f.parts) && f.parts[next].at <= from {
			p := f.parts[next]
			next++
			data, err := f.unpacked(p)
			if err != nil {
				return done, fmt.Errorf("read %d bytes of SIF file %s at %d: %w", p.packed&^plain, f.header.Source.Path, p.offset, err)
			}
			done += copy(rest, data[from-p.at:])
			continue
		}
		if next < len(f.parts) {
			rest = rest[:min(int64(len(rest)), f.parts[next].at-from)]
		}
		n, err := f.image.ReadAt(rest, from)
		if done += n; n < len(rest) {
			return done, err
		}
	}
	return done, nil
}

func (p part) end() int64 { return p.at + int64(p.size) }

// unpacked returns the content of a part.
func (f *File) unpacked(p part) ([]byte, error) {
	block, err := f.cache.get(place{p.offset, p.packed}, func() ([]byte, error) { return f.block(p) })
	if err == nil && int64(p.inner)+int64(p.size) > int64(len(block)) {
		err = fmt.Errorf("bytes %d to %d of a block of %d: %w", p.inner, int64(p.inner)+int64(p.size), len(block), squashfs.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	return block[p.inner:][:p.size], nil
}

// block reads the block of a part from the SIF file.
func (f *File) block(p part) ([]byte, error) {
	size := p.packed &^ plain
	if size > f.Packing.BlockSize {
		return nil, errDamaged
	}
	packed := make([]byte, size)
	if err := f.read(packed, p.offset); err != nil || p.packed&plain != 0 {
		return packed, err
	}
	unpacker, ok := f.unpackers.Get().(*squashfs.Unpacker)
	if !ok {
		var err error
		if unpacker, err = squashfs.NewUnpacker(f.Packing); err != nil {
			return nil, err
		}
	}
	defer f.unpackers.Put(unpacker)
	return unpacker.Unpack(packed)
}

// read reads from the SIF file. It checks after the read that the file has not
// changed.
func (f *File) read(into []byte, at int64) error {
	most := tries
	if f.isFailing() {
		most = 1
	}
	for try, pause := 1, firstPause; ; try, pause = try+1, pause*2 {
		err := f.readOnce(into, at)
		switch {
		case err == nil:
			if most == 1 {
				f.failUntil(time.Time{})
			}
			return nil
		case errors.Is(err, os.ErrClosed):
			return err
		case errors.Is(err, ErrChanged):
			return f.report(err)
		case most == 1:
			return err
		case try == most:
			return f.fail(err)
		}
		f.pause(pause)
		// A server that has forgotten the file returns ESTALE. For a file that was
		// removed on another host, some user-space file systems return ENOENT.
		if errors.Is(err, syscall.ESTALE) || errors.Is(err, os.ErrNotExist) {
			if err := f.reopen(); errors.Is(err, ErrChanged) || errors.Is(err, os.ErrNotExist) {
				return f.fail(err)
			}
		}
	}
}

func (f *File) isFailing() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.now().Before(f.failing)
}

// fail reports an error that lasts, and lets the next reads fail without waiting.
func (f *File) fail(err error) error {
	f.failUntil(f.now().Add(failsFast))
	return f.report(err)
}

func (f *File) failUntil(end time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = end
}

func (f *File) readOnce(into []byte, at int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return os.ErrClosed
	}
	_, err := f.readAt(f.source, into, at)
	if other := f.isSame(f.source); other != nil {
		return other // also if the file is shorter now
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
