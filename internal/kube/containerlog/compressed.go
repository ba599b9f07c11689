package containerlog

import (
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxUnpacked bounds the size of a decompressed file, in bytes. The directory of
// the logs may be writable for a pod, which could place any file there.
const maxUnpacked = DefaultSpool

// openCompressed sets stamp and length of a segment whose open file is compressed. It
// decompresses only the beginning: unpack does the rest once a client needs it.
func (s *segment) openCompressed() error {
	var head [64]byte
	n, err := io.ReadFull(s.contents(), head[:])
	if n == 0 {
		return fmt.Errorf("decompress %s: %w", s.file.Name(), err)
	}
	s.setStamp(head[:n])
	// A gzip file ends with its decompressed size, modulo 2^32.
	size, _ := s.size()
	var length [4]byte
	if _, err := s.file.ReadAt(length[:], size-int64(len(length))); err != nil {
		return fmt.Errorf("read the size of %s: %w", s.file.Name(), err)
	}
	s.compressed, s.length = true, int64(binary.LittleEndian.Uint32(length[:]))
	return nil
}

// contents returns a reader of the decompressed file.
func (s *segment) contents() io.Reader {
	unpacked, err := gzip.NewReader(io.NewSectionReader(s.file, 0, 1<<62))
	if err != nil {
		return failingReader{err}
	}
	return io.LimitReader(unpacked, maxUnpacked+1)
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// unpack replaces the compressed file of a segment by a decompressed one without a name,
// which prune drops like any other deleted file. If that fails, unpack drops the segment.
func (c *container) unpack(s *segment) {
	s.unpacking.Lock() // excludes other readers; c.mu would block the Watcher
	defer s.unpacking.Unlock()
	c.mu.Lock()
	packed := s.file
	if packed == nil || !s.compressed {
		c.mu.Unlock()
		return
	}
	contents := s.contents()
	c.mu.Unlock()
	plain, err := c.copyNameless(contents)
	c.mu.Lock()
	defer c.mu.Unlock()
	dropped := s.file != packed // the Watcher may have pruned it meanwhile
	if err == nil && !dropped {
		err = s.take(plain)
	}
	if plain != nil && (dropped || err != nil) {
		plain.Close()
	}
	if dropped {
		return
	}
	if err != nil {
		s.cause = err.Error()
		s.drop()
		return
	}
	packed.Close()
	s.compressed, s.complete = false, true
}

// copyNameless copies contents to a file without a name beside the pods' logs.
func (c *container) copyNameless(contents io.Reader) (*os.File, error) {
	name := ".unpacked-" + strings.ReplaceAll(c.path, "/", "_")
	_ = c.root.Remove(name) // a killed process may have left it
	file, err := c.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = c.root.Remove(name)
	if err == nil {
		var written int64
		if written, err = io.Copy(file, contents); err == nil && written > maxUnpacked {
			err = fmt.Errorf("decompress a log of %s: more than %d bytes", c.path, int64(maxUnpacked))
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
