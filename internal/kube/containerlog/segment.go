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

// segment is one file of a container's log. The file stays open, so that it can be read
// after it was renamed or deleted.
type segment struct {
	generation int // see Position.Generation
	// rotated is the TIME in the file's name (see logName). It is empty for the file that
	// the runtime writes to.
	rotated     string
	device, ino uint64
	stamp       string // see Position.Segment; empty while the file is empty

	file *os.File // nil once it was dropped
	// compressed reports whether file is a gzip file. length is its decompressed size in
	// bytes.
	compressed bool
	length     int64
	unpacking  sync.Mutex
	// complete reports whether nothing more will be written to the file.
	complete bool
	// sent is the end of the part of the file that a client has received, as an offset.
	// Records up to the offset taken are being sent.
	sent, taken int64
	sentAt      time.Time
	// deleted is the time when the file was found to have no name.
	deleted time.Time
	// lost counts the output in a dropped file after taken. cause is empty if the file was
	// dropped because a client was too slow. uncounted reports whether more is lost than
	// lost counts, because the file could not be read.
	lost      Loss
	cause     string
	uncounted bool
	end       int64 // size of a dropped file, in bytes
}

// open opens a log file below dir.
func (s *segment) open(dir *os.Root, name string) error {
	file, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := s.take(file); err != nil {
		file.Close()
		return fmt.Errorf("open %s: %w", name, err)
	}
	return nil
}

// take sets the segment's file, with its device and inode number. It returns an error
// unless file is a regular file.
func (s *segment) take(file *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("not a regular file")
	}
	s.file, s.device, s.ino = file, uint64(stat.Dev), stat.Ino
	return nil
}

// lose records that the content of the segment is lost, by an unknown amount, and closes
// the file if it is open.
func (s *segment) lose(cause error) {
	s.cause, s.uncounted, s.end = cause.Error(), true, 1
	s.file.Close()
	s.file = nil
}

// after reports whether s was written after the segment of p.
func (s *segment) after(p Position) bool {
	if s.generation != p.Generation {
		return s.generation > p.Generation
	}
	return s.stamp == "" || s.stamp > p.Segment
}

// readStamp sets stamp to the first time stamp of the file, unless it is set.
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

// size returns the size of the file's decompressed content in bytes, and reports whether
// the file still has a name. It returns zero values for a dropped file.
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

// drop closes the file, and counts its unread output as lost.
func (s *segment) drop() {
	if s.file == nil {
		return
	}
	s.readStamp()
	unread := io.Reader(io.NewSectionReader(s.file, s.taken, 1<<62))
	if s.compressed {
		unread = s.contents()
		_, _ = io.CopyN(io.Discard, unread, s.taken) // countFrom gets the same error
	}
	var err error
	if s.lost, err = countFrom(unread); err != nil {
		s.uncounted = true
		if s.cause == "" {
			s.cause = err.Error()
		}
	}
	s.end, _ = s.size()
	if s.uncounted {
		s.end = max(s.end, s.taken+1) // so that the position after the loss differs from the one before
	}
	s.file.Close()
	s.file = nil
}

// countFrom counts the output in a part of a log file, up to the first error.
func countFrom(r io.Reader) (loss Loss, err error) {
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
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return loss, err
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
	case s.rotated == other.rotated: // one of them is empty, so it is newer
		return strings.Compare(other.stamp, s.stamp)
	case s.rotated == "":
		return 1
	case other.rotated == "":
		return -1
	}
	return strings.Compare(s.rotated, other.rotated)
}
