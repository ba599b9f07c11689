package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"berth.dev/berth/internal/base/exitcode"
)

// Readable returns the path of archive number i on this node. If this node does not see
// the head's file, Readable copies the file to a directory of copies. others is nil on
// the head, which has all archives.
func Readable(ctx context.Context, i int, a Archive, others *Relay, copies Places) (string, error) {
	if others == nil || a.Here() {
		return a.Path, nil
	}
	if a.Root {
		return "", exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use folder %s as an image: this node does not have it", a.Path))
	}
	dir, err := copies.dir(i, a)
	if err != nil {
		return "", exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("make a folder for image archives: %w", err))
	}
	path, err := others.fetch(ctx, i, a, dir)
	if err == nil {
		return path, nil
	}
	os.RemoveAll(dir) // an incomplete copy
	code := exitcode.Unavailable
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		code = exitcode.NoSpace
	}
	return "", exitcode.Wrap(code, fmt.Errorf("copy image archive %s from the head: %w", a.Path, err))
}

// Places names the directories for copies of archives. Passing holds copies
// that are imported and removed. InPlace holds SIF files that are used as they
// are, as long as the node lives. InPlace is empty if the node uses no SIF file in place.
type Places struct{ Passing, InPlace string }

// dir creates a directory for the copy of an archive.
func (c Places) dir(i int, a Archive) (dir string, err error) {
	if a.SIF && c.InPlace != "" {
		if err = os.MkdirAll(c.InPlace, 0o700); err == nil {
			// Earlier copies may have the same number.
			dir, err = os.MkdirTemp(c.InPlace, "")
		}
		return dir, err
	}
	dir = filepath.Join(c.Passing, strconv.Itoa(i))
	return dir, os.MkdirAll(dir, 0o700)
}
