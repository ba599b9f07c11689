package layercache

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// partialFor is the time that a partial download is kept so that a job can resume it.
const partialFor = 7 * 24 * time.Hour

// Partial is a partial download of a registry's blob. Several processes may
// write to it at once, because all write the same bytes at each offset. Its content is not
// trusted: every reader checks the whole blob's digest.
type Partial struct {
	file *os.File
	// before is the size at the opening; end is the offset of the next bytes.
	before, end int64
}

// Partial opens the partial download of a blob, or begins one.
func (c *Cache) Partial(blob digest.Digest) (*Partial, error) {
	if err := blob.Validate(); err != nil || blob.Algorithm() != digest.SHA256 {
		return nil, errors.Join(err, errors.ErrUnsupported)
	}
	path := filepath.Join(c.partials(), blob.Encoded())
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = checkOwn(path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Partial{file, info.Size(), info.Size()}, nil
}

// Before returns the size of the partial download when it was opened, in bytes.
func (p *Partial) Before() int64 { return p.before }

// Reader returns a reader of the bytes that were there when it was opened.
func (p *Partial) Reader() io.Reader { return io.NewSectionReader(p.file, 0, p.before) }

// Add appends content. After an error the download cannot be continued.
func (p *Partial) Add(content []byte) error {
	if p.file == nil {
		return fs.ErrClosed
	}
	n, err := p.file.WriteAt(content, p.end)
	p.end += int64(n)
	if err != nil {
		return errors.Join(err, p.Remove())
	}
	return nil
}

// Close keeps the file for other jobs. It can be called twice, also after Remove.
func (p *Partial) Close() error {
	if p.file == nil {
		return nil
	}
	err := p.file.Close()
	p.file = nil
	return err
}

// Remove removes a file that is wrong or no longer needed. Other writers only lose
// the kept bytes. Readers on other NFS clients get ESTALE and start again.
func (p *Partial) Remove() error {
	if p.file == nil {
		return nil
	}
	return errors.Join(ignoreGone(os.Remove(p.file.Name())), p.Close())
}

// beginnings returns the files of all partial blobs, the oldest first, and their total size
// in bytes.
func (f folder) beginnings() (files []fs.FileInfo, total int64, err error) {
	entries, err := os.ReadDir(f.partials())
	for _, e := range entries {
		// Skip other names: an NFS client renames a removed file that a process has open,
		// and the new name cannot be removed.
		if digest.NewDigestFromEncoded(digest.SHA256, e.Name()).Validate() != nil {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() { // otherwise another job has just finished it
			files = append(files, info)
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return files, total, err
}

// dropBeginnings removes partial blobs, the oldest first, until want bytes are free.
// It returns the number of bytes freed. A blob that cannot be removed stays, without
// an error.
func (f folder) dropBeginnings(want int64) (freed int64, err error) {
	files, _, err := f.beginnings()
	for _, info := range files {
		if freed >= want {
			break
		}
		if drop(filepath.Join(f.partials(), info.Name())) == nil {
			freed += info.Size()
		}
	}
	return freed, err
}

// drop removes a partial blob and frees its space, even while somebody writes to
// it. A reader then finds a wrong digest and starts again.
func drop(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer file.Close()
	if err := os.Remove(path); err != nil {
		return ignoreGone(err)
	}
	return file.Truncate(0)
}
