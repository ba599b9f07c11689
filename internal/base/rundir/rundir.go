// Package rundir keeps one locked directory per run. The lock distinguishes a directory
// in use from one that a crash left. The package does not choose the parent
// directory, and it cannot remove files of subordinate users.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName = "lock"
	// newPrefix marks a directory that is not locked yet.
	newPrefix = ".new-"
	// newGrace limits how long a new directory may stay unlocked.
	newGrace = time.Hour
)

// Dir is a run's directory. Its lock is held as long as any process has Lock
// open.
type Dir struct {
	Path string
	Lock *os.File
}

// Home returns the path of the user's own directory below base, which contains the
// directories of runs. If base is writable for everybody, another user can take that name.
// Then the directory has the name with a random suffix.
func Home(base string) string { return filepath.Join(base, fmt.Sprintf("berth-%d", os.Getuid())) }

// Owned returns this user's directories below base with the name of Home, or that
// name with a suffix. Do not trust any other directory: its owner may have chosen
// any name.
func Owned(base string) []string {
	first := Home(base)
	var homes []string
	if owned(first) {
		homes = append(homes, first)
	}
	// If base cannot be read, only the directory without a suffix is found.
	entries, _ := os.ReadDir(base)
	for _, entry := range entries {
		path := filepath.Join(base, entry.Name())
		if strings.HasPrefix(path, first+suffixMark) && owned(path) {
			homes = append(homes, path)
		}
	}
	return homes
}

// suffixMark begins the suffix of a home.
const suffixMark = "."

// createTries limits how often Create starts again because another run, at its
// end, removed the home directory that looked empty.
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

// makeHome returns the user's own directory below base, and creates it if necessary.
func makeHome(base string) (string, error) {
	home := Home(base)
	if homes := Owned(base); len(homes) > 0 {
		home = homes[0]
	} else if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make run directory: %w", err)
	}
	if !owned(home) {
		// If another run has just removed it at its end, Create tries again.
		_, err := os.Lstat(home)
		if err != nil {
			return "", fmt.Errorf("make run directory: %w", err)
		}
		if home, err = os.MkdirTemp(base, filepath.Base(home)+suffixMark); err != nil {
			return "", fmt.Errorf("make run directory: %w", err)
		}
	}
	if err := os.Chmod(home, 0o700); err != nil {
		return "", fmt.Errorf("close %s to others: %w", home, err)
	}
	return home, nil
}

// owned reports whether home is a directory of this user, and not a link to one.
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

// Stale returns the directories of runs below base that no process has locked any more.
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
