package savedstate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fileName is the name of the state's file in its folder.
const fileName = "cluster.state"

// Folder is a folder that this run may write to.
type Folder struct {
	path string
	// key encrypts Secrets. If nil, Secrets are omitted.
	key   []byte
	claim claim
}

// Open opens a folder for the given run, and creates it if necessary. With a nil
// key, Secrets are omitted. It fails if others can access the folder, or if another
// run has it.
func Open(path string, key []byte, owner Owner, lives Lives) (*Folder, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder for the state: %w", err)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the folder for the state: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("use the folder of the state: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("use the folder of the state: %s is not a folder", path)
	}
	if err := checkAlone(path); err != nil {
		return nil, fmt.Errorf("use the folder of the state: %w", err)
	}
	f := &Folder{path: path, key: key}
	if f.claim, err = takeClaim(path, owner, lives); err != nil {
		return nil, err
	}
	return f, nil
}

// checkAlone refuses a file or folder that another user owns, or that others may
// access.
func checkAlone(path string) error {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(stat.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to user %d, not to you", path, stat.Uid)
	}
	if mode := stat.Mode & 0o777; mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, so others can read or change it: chmod go-rwx %s, if you trust what is in it", path, mode, path)
	}
	return nil
}

// Load returns the saved state. ok is false if there is none.
func (f *Folder) Load() (s Snapshot, ok bool, err error) {
	path := filepath.Join(f.path, fileName)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, false, nil
	}
	if err == nil {
		defer file.Close()
		s, err = f.read(file)
	}
	if err != nil {
		return Snapshot{}, false, fmt.Errorf("restore the cluster from %s: %w; to start again: mv %[1]s %[1]s.old", path, err)
	}
	return s, true, nil
}

func (f *Folder) read(file *os.File) (Snapshot, error) {
	info, err := file.Stat()
	if err != nil {
		return Snapshot{}, err
	}
	if !info.Mode().IsRegular() {
		return Snapshot{}, errors.New("it is not a file")
	}
	if err := checkAlone(fmt.Sprintf("/proc/self/fd/%d", file.Fd())); err != nil {
		return Snapshot{}, err
	}
	content := make([]byte, info.Size())
	if _, err := file.ReadAt(content, 0); err != nil {
		return Snapshot{}, err
	}
	return decode(content, f.key)
}

// errTaken is the error if another run has taken the folder.
var errTaken = errors.New("another run has taken it")

// Save replaces the saved snapshot. A reader sees either the old or the new one. Save
// returns an error that wraps errTaken if another run has the folder now.
func (f *Folder) Save(s Snapshot) error {
	path := filepath.Join(f.path, fileName)
	if err := f.save(path, s); err != nil {
		return fmt.Errorf("save the state of the cluster in %s: %w", f.path, err)
	}
	return nil
}

func (f *Folder) save(path string, s Snapshot) error {
	content, err := encode(s, f.key)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(f.claim.file(".new"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync() // sync before the rename, or a power failure could leave a partial file
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = f.claim.check()
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return syncFolder(f.path)
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	// Some file systems do not support this.
	if err := folder.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// Renew shows other runs that this run is alive. Call it more often than every five minutes
// (silence). It returns errTaken if another run has the folder now.
func (f *Folder) Renew() error { return f.claim.renew() }

// Close releases the folder for other runs. It returns nil if another run has it already.
func (f *Folder) Close() error { return f.claim.release() }
