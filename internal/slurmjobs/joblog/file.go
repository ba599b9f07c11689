// Package joblog reads the output files of jobs, and serves them to an API server as the logs of
// containers, as a kubelet does. It creates no pods, and does not decide which job a pod shows.
package joblog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"berth.dev/berth/internal/slurmjobs/script"
)

// File is a file that a job writes. The zero value of every field but Path is usable.
type File struct {
	Path string
	// Roots lists the folders that may hold the file, after symbolic links are resolved. If it
	// is nil, the file may be anywhere.
	Roots []string
	// Tail limits the first Copy to this number of lines at the end of the file. If it is nil,
	// Copy begins at the start.
	Tail *int64
	// Found reports whether the file was there once.
	Found bool

	// info describes the file that was read last, and offset is the number of its bytes
	// that were read.
	info   os.FileInfo
	offset int64
	// end holds the last bytes that were read, at most maxEnd.
	end []byte
}

// maxEnd is the number of bytes that tell a file from another one in its place.
const maxEnd = 256

// Copy copies the bytes that were not read yet. A file that was replaced, has become shorter, or
// has other bytes before the offset, as the output of a requeued job has, is read from its start.
// missing is the error for a file that is not there. Copy opens the file at each call, because a
// network file system fetches the writes of other hosts when a file is opened. The search for the last
// lines ends with ctx.
func (f *File) Copy(ctx context.Context, out io.Writer) (missing, err error) {
	file, err := OpenRegular(f.Path)
	if errors.Is(err, os.ErrNotExist) {
		f.info = nil
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := f.check(file); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if f.info == nil || !os.SameFile(f.info, info) || !f.continues(file) {
		f.offset, f.end = 0, nil
	}
	if !f.Found && f.Tail != nil {
		if err := f.skip(ctx, file, info.Size()); err != nil {
			return nil, err
		}
	}
	f.Found, f.info = true, info
	if _, err := file.Seek(f.offset, io.SeekStart); err != nil {
		return nil, err
	}
	n, err := io.Copy(io.MultiWriter(out, (*ending)(f)), file)
	f.offset += n
	return nil, err
}

// check returns an error if an open file is outside the roots. It asks the kernel for the path of
// the file: a symbolic link may have changed since the file was opened.
func (f *File) check(file *os.File) error {
	if f.Roots == nil {
		return nil
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return err
	}
	return script.Within(path, f.Roots)
}

// skip moves the offset to the start of the last lines.
func (f *File) skip(ctx context.Context, file io.ReaderAt, size int64) (err error) {
	if f.offset, err = startOfLast(ctx, file, size, *f.Tail); err != nil {
		return err
	}
	f.end = make([]byte, min(f.offset, maxEnd))
	_, err = file.ReadAt(f.end, f.offset-int64(len(f.end)))
	return err
}

// startOfLast returns the offset of the last lines of a file. The last line may lack its line feed.
func startOfLast(ctx context.Context, file io.ReaderAt, size, lines int64) (int64, error) {
	if lines <= 0 {
		return size, nil
	}
	block := make([]byte, 64<<10)
	for end := size; end > 0; {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		begin := max(0, end-int64(len(block)))
		part := block[:end-begin]
		if _, err := file.ReadAt(part, begin); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if at := begin + int64(i); part[i] == '\n' && at != size-1 {
				if lines--; lines == 0 {
					return at + 1, nil
				}
			}
		}
		end = begin
	}
	return 0, nil
}

// continues reports whether a file still has the last bytes that were read.
func (f *File) continues(file io.ReaderAt) bool {
	now := make([]byte, len(f.end))
	n, _ := file.ReadAt(now, f.offset-int64(len(f.end)))
	return bytes.Equal(now[:n], f.end)
}

// ending is a writer that keeps the end of what was read.
type ending File

func (e *ending) Write(read []byte) (int, error) {
	e.end = append(e.end, read[max(0, len(read)-maxEnd):]...)
	e.end = slices.Clone(e.end[max(0, len(e.end)-maxEnd):])
	return len(read), nil
}

// OpenRegular opens a regular file for reading. It does not wait for the writer of a pipe.
func OpenRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
