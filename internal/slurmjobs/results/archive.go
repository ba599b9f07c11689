// Package results copies files between this host and volumes of a Kubernetes cluster: the results
// of a job that has ended into a volume, and inputs of a job from a volume. They go through the API
// server to or from a pod that mounts the volume. When files are copied, and what the statuses of
// objects say, belongs to package controller.
package results

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Source describes the file or folder to collect.
type Source struct {
	// Path is absolute. Its symbolic links are resolved, and must end below a root.
	Path  string
	Roots []string
	Limits
}

// Limits are the largest results of a job. A sparse file counts with its length.
type Limits struct {
	Bytes int64
	Files int
}

// DefaultLimits returns the limits for a job.
func DefaultLimits() Limits { return Limits{Bytes: 100 << 30, Files: 1 << 20} }

// maxDepth is the largest depth of a folder below the collected one. Each level has a descriptor.
const maxDepth = 100

// Summary describes the files that were collected.
type Summary struct {
	Files int
	Bytes int64
	// LeftOut is the number of links, pipes, devices, sockets and files of other users.
	LeftOut int
}

// Final wraps an error that another attempt does not correct.
type Final struct{ error }

// NewFinal wraps an error.
func NewFinal(err error) error { return &Final{err} }

// Unwrap returns the wrapped error.
func (f *Final) Unwrap() error { return f.error }

// Write writes the file or folder to out, as a tar archive in GNU's format. The names in it begin
// with the last component of the path. It contains regular files of this user and folders.
func (s Source) Write(ctx context.Context, out io.Writer) (Summary, error) {
	file, err := s.open()
	if err != nil {
		return Summary{}, err
	}
	a := &archive{ctx: ctx, tar: tar.NewWriter(out), limits: s.Limits, uid: uint32(os.Getuid())}
	info, err := stat(file)
	if err == nil && !a.wanted(info) {
		err = &Final{errors.New("it is neither a folder nor a regular file of yours")}
	}
	if err == nil {
		err = a.add(file, info, filepath.Base(filepath.Clean(s.Path)), 0)
	}
	file.Close()
	if err == nil {
		err = a.tar.Close()
	}
	if err != nil {
		return a.Summary, fmt.Errorf("collect %s: %w", s.Path, err)
	}
	return a.Summary, nil
}

// Open opens the path, which must be a regular file of this user, and returns its size.
func (s Source) Open() (*os.File, int64, error) {
	file, err := s.open()
	if err != nil {
		return nil, 0, err
	}
	info, err := stat(file)
	if err == nil && (info.Mode&unix.S_IFMT != unix.S_IFREG || info.Uid != uint32(os.Getuid())) {
		err = &Final{fmt.Errorf("%s is no regular file of yours", s.Path)}
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size, nil
}

// open opens the path below one of the roots.
func (s Source) open() (*os.File, error) {
	resolved, err := filepath.EvalSymlinks(s.Path)
	if err != nil {
		return nil, fmt.Errorf("collect the results: %w", err)
	}
	for _, folder := range s.Roots {
		folder, err := filepath.EvalSymlinks(folder)
		if err != nil {
			continue
		}
		below, err := filepath.Rel(folder, resolved)
		if err != nil || !filepath.IsLocal(below) {
			continue
		}
		file, err := openBelow(folder, below)
		if err != nil {
			return nil, fmt.Errorf("collect %s: %w", resolved, err)
		}
		return file, nil
	}
	return nil, &Final{fmt.Errorf("the results %s are outside the folders for results: start 'berth slurm-jobs' with --results-root %s, or write them below the job's working directory",
		resolved, filepath.Dir(resolved))}
}

// openBelow opens a path below a folder. It follows no link that leads out of the folder, and does
// not wait for the writer of a pipe.
func openBelow(folder, path string) (*os.File, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// openEntry opens an entry of a folder. It follows no link, and does not wait for the writer of a
// pipe.
func openEntry(folder *os.File, entry, name string) (*os.File, error) {
	fd, err := unix.Openat(int(folder.Fd()), entry, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// archive writes a tar archive.
type archive struct {
	Summary
	ctx    context.Context
	tar    *tar.Writer
	limits Limits
	uid    uint32
}

func stat(file *os.File) (unix.Stat_t, error) {
	var info unix.Stat_t
	err := unix.Fstat(int(file.Fd()), &info)
	return info, err
}

// wanted reports whether a file belongs into the archive.
func (a *archive) wanted(info unix.Stat_t) bool {
	switch info.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return true
	case unix.S_IFREG:
		return info.Uid == a.uid
	}
	return false
}

// add adds a file or a folder, which may be at some depth below the collected folder.
func (a *archive) add(file *os.File, info unix.Stat_t, name string, depth int) error {
	header := &tar.Header{
		Format: tar.FormatGNU, Name: name, Mode: int64(info.Mode & 0o777), ModTime: time.Unix(info.Mtim.Unix()), Typeflag: tar.TypeReg, Size: info.Size,
	}
	folder := info.Mode&unix.S_IFMT == unix.S_IFDIR
	if folder {
		header.Typeflag, header.Name, header.Size = tar.TypeDir, name+"/", 0
	}
	switch {
	case context.Cause(a.ctx) != nil:
		return context.Cause(a.ctx)
	case a.Files+1 > a.limits.Files:
		return &Final{fmt.Errorf("there are more than %d files: put them into one archive in the job's script", a.limits.Files)}
	case header.Size > a.limits.Bytes-a.Bytes:
		return &Final{fmt.Errorf("%s makes the results larger than %d bytes: collect fewer files, or copy them by hand", name, a.limits.Bytes)}
	case depth > maxDepth:
		return &Final{fmt.Errorf("%s is deeper than %d folders: put the files into one archive in the job's script", name, maxDepth)}
	}
	if err := a.tar.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	a.Files++
	if folder {
		return a.addContents(file, name, depth)
	}
	// What a file gains after the header was written is not part of the results.
	n, err := io.CopyN(a.tar, untilDone{a.ctx, file}, header.Size)
	a.Bytes += n
	if errors.Is(err, io.EOF) {
		err = errors.New("it became shorter while it was read")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// batch is the number of names of a folder that are read at once.
const batch = 1024

// addContents adds the files in a folder. It opens them relative to the open folder, and follows
// no links.
func (a *archive) addContents(folder *os.File, name string, depth int) error {
	for {
		names, err := folder.Readdirnames(batch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, inner := range names {
			if err := a.addEntry(folder, inner, name+"/"+inner, depth+1); err != nil {
				return err
			}
		}
	}
}

// addEntry adds one entry of a folder, unless it is of a kind that is left out.
func (a *archive) addEntry(folder *os.File, entry, name string, depth int) error {
	var before unix.Stat_t
	err := unix.Fstatat(int(folder.Fd()), entry, &before, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !a.wanted(before) {
		a.LeftOut++
		return nil
	}
	file, err := openEntry(folder, entry, name)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		a.LeftOut++ // replaced meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer file.Close()
	info, err := stat(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !a.wanted(info) {
		a.LeftOut++
		return nil
	}
	return a.add(file, info, name, depth)
}

// untilDone reads until the context ends.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (r untilDone) Read(buffer []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.Reader.Read(buffer)
}
