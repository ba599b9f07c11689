package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory returns a writable directory in memory for small files that must not reach a disk,
// or "" if there is none.
func Memory(getenv func(string) string) string {
	for _, dir := range []string{getenv("XDG_RUNTIME_DIR"), sharedMemory} {
		if dir == "" || !filepath.IsAbs(dir) {
			continue
		}
		if info, err := os.Stat(dir); err == nil && info.IsDir() && Writable(dir) {
			return dir
		}
	}
	return ""
}

const sharedMemory = "/dev/shm"

// MemoryPlaces returns all directories that Memory may have returned to another
// process of this user on this host, with another environment.
func MemoryPlaces(getenv func(string) string) []string {
	places := []string{sharedMemory, fmt.Sprintf("/run/user/%d", os.Getuid())}
	if own := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(own) && own != places[0] && own != places[1] {
		places = append(places, own)
	}
	return places
}

// Writable reports whether this user can make files in a directory.
func Writable(dir string) bool {
	file, err := os.CreateTemp(dir, ".berth-")
	if err != nil {
		return false
	}
	file.Close()
	return os.Remove(file.Name()) == nil
}

// Live returns the directories below base that a process has locked.
func Live(base string) []string {
	var live []string
	for _, home := range Owned(base) {
		entries, err := os.ReadDir(home)
		if err != nil {
			continue // no run can have a directory there
		}
		for _, entry := range entries {
			path := filepath.Join(home, entry.Name())
			if entry.IsDir() && !strings.HasPrefix(entry.Name(), newPrefix) && locked(path) {
				live = append(live, path)
			}
		}
	}
	return live
}

func locked(path string) bool {
	file, err := os.Open(filepath.Join(path, lockName))
	if err != nil {
		return false
	}
	defer file.Close()
	return errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Await returns nil when no process has the directory locked any more, or if it has no
// lock file.
func Await(path string) error {
	file, err := os.Open(filepath.Join(path, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for the end of %s: %w", path, err)
	}
	defer file.Close()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Claim works like Create, but for a name that several processes want and only one
// may have. It first removes the directory of a dead process. It fails with
// fs.ErrExist if a living process has it.
func Claim(base, name string) (*Dir, error) {
	for range createTries {
		dir, err := Create(base, name)
		if !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
		if !reclaim(base, name) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("make run directory %s: %w", name, fs.ErrExist)
}

// reclaim removes the directory if no process has locked it. It reports whether the name is
// free.
func reclaim(base, name string) bool {
	for _, home := range Owned(base) {
		path := filepath.Join(home, name)
		if !owned(path) {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		if err != nil {
			return !owned(path)
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			lock.Close()
			return false
		}
		dir := Dir{Path: path, Lock: lock}
		// Another process may have removed the directory meanwhile, and made a new one with
		// this name.
		if !dir.current() {
			lock.Close()
			return true
		}
		return dir.Remove() == nil
	}
	return true
}

// current reports whether the lock belongs to the file that is at the path now.
func (d *Dir) current() bool {
	mine, err := d.Lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(filepath.Join(d.Path, lockName))
	return err == nil && os.SameFile(mine, there)
}

// Remove removes a directory that contains only files of this user, and unlocks it. It
// renames the directory first, so that another process can use the name at once.
func (d *Dir) Remove() error {
	defer d.Lock.Close()
	aside, err := os.MkdirTemp(filepath.Dir(d.Path), newPrefix)
	if err != nil {
		return fmt.Errorf("remove run directory: %w", err)
	}
	if err := unix.Rename(d.Path, aside); err != nil { // os.Rename refuses a directory that exists
		return errors.Join(fmt.Errorf("remove run directory: %w", err), os.Remove(aside))
	}
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove run directory: %w", err)
	}
	_ = os.Remove(filepath.Dir(d.Path)) // the user's own directory stays while others are in it
	return nil
}
