// Package rundir keeps one locked directory per run, so that what a crash left
// can be told from what is in use. It does not decide where such directories
// are, and it cannot remove files of subordinate users.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName = "lock"
	// newPrefix marks a directory that is not locked yet.
	newPrefix = ".new-"
	// newGrace is how long a directory may stay unlocked while it is made.
	newGrace = time.Hour
)

// Dir is a run's directory. Its lock is held as long as any process has Lock
// open.
type Dir struct {
	Path string
	Lock *os.File
}

// homes is how many names for a user's own directory are tried: in a place that
// everybody writes to, others may have taken some.
const homes = 8

// Homes are where one user's run directories may lie below base. All but the
// first are used only where another user has what comes before.
func Homes(base string) []string {
	first := filepath.Join(base, fmt.Sprintf("berth-%d", os.Getuid()))
	names := []string{first}
	for i := 1; i < homes; i++ {
		names = append(names, fmt.Sprintf("%s.%d", first, i))
	}
	return names
}

// Owned are those of Homes that are there and this user's. Nothing in any other
// is to be believed: whoever made it chose its name.
func Owned(base string) []string {
	return slices.DeleteFunc(Homes(base), func(home string) bool { return !owned(home) })
}

// createTries is how often Create begins again because another run, at its
// end, removed what looked like an empty home.
const createTries = 10

// Create makes and locks the directory of a run below base. It fails with
// fs.ErrExist when the run has one there already.
func Create(base, run string) (*Dir, error) {
	for try := 1; ; try++ {
		dir, err := create(base, run)
		if try == createTries || !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
	}
}

func create(base, run string) (*Dir, error) {
	home, err := makeHome(base)
	if err != nil {
		return nil, err
	}
	// The directory appears under its name only when it is locked, or another
	// start might take it for a leftover.
	path, err := os.MkdirTemp(home, newPrefix)
	if err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	dir, err := lock(path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	final := filepath.Join(home, run)
	if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE); err != nil {
		err = fmt.Errorf("make run directory %s: %w", final, err)
		return nil, errors.Join(err, dir.Lock.Close(), os.RemoveAll(path))
	}
	dir.Path = final
	return dir, nil
}

// makeHome makes the user's own directory, or finds it.
func makeHome(base string) (string, error) {
	for _, home := range Homes(base) {
		if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("make run directory: %w", err)
		}
		if !owned(home) {
			continue
		}
		if err := os.Chmod(home, 0o700); err != nil {
			return "", fmt.Errorf("close %s to others: %w", home, err)
		}
		return home, nil
	}
	return "", fmt.Errorf("%s and %d names like it are taken by other users; ask the administrator to remove them", Homes(base)[0], homes-1)
}

// owned tells whether home is a directory of this user's, and no link to one.
func owned(home string) bool {
	var stat unix.Stat_t
	err := unix.Lstat(home, &stat)
	return err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR && int(stat.Uid) == os.Getuid()
}

func lock(path string) (*Dir, error) {
	file, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return &Dir{Path: path, Lock: file}, nil
}

// Stale returns the directories of runs below base whose processes are all
// gone.
func Stale(base string) ([]string, error) {
	var stale []string
	for _, home := range Owned(base) {
		entries, err := os.ReadDir(home)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for leftovers: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(home, entry.Name())
			if entry.IsDir() && isStale(path, entry) {
				stale = append(stale, path)
			}
		}
	}
	return stale, nil
}

func isStale(path string, entry fs.DirEntry) bool {
	if strings.HasPrefix(entry.Name(), newPrefix) {
		info, err := entry.Info()
		return err == nil && time.Since(info.ModTime()) > newGrace
	}
	file, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true // its removal was interrupted
	}
	if err != nil {
		return false
	}
	defer file.Close()
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
