package rendezvous

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// sharedKey is the name of the file with the key that nodes of other jobs need to join.
const sharedKey = "key"

// WriteKey makes a key that nodes of other jobs need to join a step, and stores it in the
// user's folder. Only the user can read it. remove removes it.
func WriteKey(folder string, step Step) (key []byte, remove func(), err error) {
	f, err := OpenFolder(folder, step)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	key = make([]byte, minKey)
	rand.Read(key) // never fails
	name := f.file(sharedKey)
	// Others that read the folder see the complete file.
	err = errors.Join(f.root.WriteFile(name+".new", key, 0o600), f.root.Chmod(name+".new", 0o600))
	if err == nil {
		err = f.root.Rename(name+".new", name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("store the key for nodes of other jobs in %s: %w", folder, err)
	}
	return key, func() {
		_ = f.Clear()
		f.Close()
	}, nil
}

// ReadKey waits for the key that WriteKey stores, until ctx ends. It refuses a file that
// others may read or write, and changes nothing in the folder, which belongs to the head: a
// node that gives up must not remove a key that the head has just stored.
func ReadKey(ctx context.Context, folder string, step Step) ([]byte, error) {
	f, err := findFolder(folder, step)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for {
		key, err := f.readShared()
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return key, err
		}
		select {
		case <-time.After(folderPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the key of the cluster in %s: %w; give 'berth up' the same folder (--rendezvous-dir)", folder, context.Cause(ctx))
		}
	}
}

func (f *Folder) readShared() ([]byte, error) {
	name := f.file(sharedKey)
	for _, directory := range []string{".", f.below} {
		if err := f.refresh(directory); err != nil {
			return nil, err
		}
		if err := f.private(directory); err != nil {
			return nil, err
		}
	}
	if err := f.private(name); err != nil {
		return nil, err
	}
	info, err := f.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s/%s may be read by others: chmod go= %[1]s/%[2]s", f.path, name)
	}
	key, err := f.root.ReadFile(name)
	if err == nil && len(key) != minKey {
		err = fmt.Errorf("%s/%s holds %d bytes, want a key of %d", f.path, name, len(key), minKey)
	}
	return key, err
}
