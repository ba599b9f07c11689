package containerlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// segment is one file of a container's log. The file stays open, so it can be
// read after it was renamed and deleted.
type segment struct {
	generation int
	// rotated is the suffix that the kubelet gave the file; empty for the one
	// that the runtime writes to.
	rotated     string
	device, ino uint64
	stamp       string // see Position.Segment; empty while the file is

	file *os.File // nil once it was dropped
	// compressed means that file is a gzip file, of length decompressed bytes.
	compressed bool
	length     int64
	unpacking  sync.Mutex
	// complete means that nothing more will be written to the file.
	complete bool
	// sent is the largest offset that was sent to a client. Records up to taken are
	// being sent.
	sent, taken int64
	sentAt      time.Time
	// deleted is the time when the file was found to have no name.
	deleted time.Time
	// lost counts the output in a dropped file after taken.
	lost Loss
	end  int64 // size of a dropped file, in bytes
}

// openSegment opens a log file below dir.
func openSegment(dir *os.Root, name string) (*segment, error) {
	file, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		file.Close()
		return nil, fmt.Errorf("stat %s: %w", name, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		file.Close()
		return nil, fmt.Errorf("open %s: not a regular file", name)
	}
	return &segment{file: file, device: uint64(stat.Dev), ino: stat.Ino}, nil
}

// after reports whether s comes after the place that p names.
func (s *segment) after(p Position) bool {
	if s.generation != p.Generation {
		return s.generation > p.Generation
	}
	return s.stamp == "" || s.stamp > p.Segment
}

// readStamp reads the first time stamp of the file.
func (s *segment) readStamp() {
	if s.stamp != "" || s.file == nil {
		return
	}
	var head [64]byte
	n, _ := s.file.ReadAt(head[:], 0)
	s.setStamp(head[:n])
}

func (s *segment) setStamp(head []byte) {
	if end := bytes.IndexByte(head, ' '); end > 0 {
		s.stamp = string(head[:end])
	}
}

// size returns the file's size, and whether it still has a name.
func (s *segment) size() (bytes int64, named bool) {
	var stat unix.Stat_t
	if s.file == nil || unix.Fstat(int(s.file.Fd()), &stat) != nil {
		return 0, false
	}
	if s.compressed {
		stat.Size = s.length
	}
	return stat.Size, stat.Nlink > 0
}

// written reports whether a process has the file open for writing. The kernel
// grants a read lease only if no process has (fcntl(2), F_SETLEASE).
func (s *segment) written() bool {
	if s.file == nil || s.complete {
		return false
	}
	fd := s.file.Fd()
	_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
		return false
	}
	if errors.Is(err, unix.EAGAIN) {
		return true
	}
	// On a file system without leases, consider the time of the last write: the
	// runtime writes all of its output at once.
	info, err := s.file.Stat()
	return err == nil && time.Since(info.ModTime()) < settled
}

// settled is the time that a file must stay unchanged to count as complete on a file
// system without leases.
const settled = 2 * time.Second

// drop closes the file, and counts what no client has read.
func (s *segment) drop() {
	if s.file == nil {
		return
	}
	s.readStamp()
	unread := io.Reader(io.NewSectionReader(s.file, s.taken, 1<<62))
	if s.compressed {
		unread = s.contents()
		_, _ = io.CopyN(io.Discard, unread, s.taken) // countFrom meets the error again
	}
	s.lost = countFrom(unread)
	s.end, _ = s.size()
	s.file.Close()
	s.file = nil
}

// countFrom counts the output in a part of a log file.
func countFrom(r io.Reader) Loss {
	var loss Loss
	var l lines
	var rest []byte
	buffer := make([]byte, chunk)
	for {
		n, err := r.Read(buffer)
		rest = append(rest, buffer[:n]...)
		b := l.decode(rest, err != nil)
		for _, f := range b.frames {
			loss.Bytes += int64(len(f.Data))
			loss.Lines += int64(bytes.Count(f.Data, []byte("\n")))
		}
		rest = append(rest[:0], rest[b.size:]...)
		if err != nil {
			return loss
		}
	}
}

// order compares two segments of a container by the time of their writing.
func (s *segment) order(other *segment) int {
	if s.generation != other.generation {
		return s.generation - other.generation
	}
	switch {
	case s.rotated == other.rotated && s.stamp != "" && other.stamp != "":
		return strings.Compare(s.stamp, other.stamp)
	case s.rotated == other.rotated: // of another directory with the same name; an empty file is the newer one
		return strings.Compare(other.stamp, s.stamp)
	case s.rotated == "":
		return 1
	case other.rotated == "":
		return -1
	}
	return strings.Compare(s.rotated, other.rotated)
}
