package rendezvous

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// folderPoll is the interval of the checks for a missing key.
const folderPoll = 50 * time.Millisecond

// Folder exchanges the public keys of nodes through a folder that all of them see.
// It contains no secrets. But whoever can write to it could impersonate a node, so
// it must belong to the user, and nobody else may write to it.
type Folder struct {
	path string
	root *os.Root
	// below is the name of the step's folder.
	below string
}

// OpenFolder creates a folder for the step within the user's folder, which must
// exist.
func OpenFolder(path string, step Step) (*Folder, error) {
	f, err := findFolder(path, step)
	if err != nil {
		return nil, err
	}
	if err = f.root.Mkdir(f.below, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
		err = f.private(f.below)
	}
	if err != nil {
		f.Close()
		return nil, f.wrong(err)
	}
	return f, nil
}

// findFolder opens the user's folder and changes nothing in it.
func findFolder(path string, step Step) (*Folder, error) {
	f := &Folder{path: path, below: fmt.Sprintf("berth-%s-%s.%d.%d", step.Cluster, step.Job, step.Step, step.Attempt)}
	if step.Joining {
		f.below += "-joining"
	}
	var err error
	if f.root, err = os.OpenRoot(path); err != nil {
		return nil, f.wrong(err)
	}
	if err := f.private("."); err != nil {
		f.Close()
		return nil, f.wrong(err)
	}
	return f, nil
}

func (f *Folder) wrong(err error) error {
	return fmt.Errorf("use the folder %s for the rendezvous: %w", f.path, err)
}

// private returns an error unless only the user can write to a file or folder.
func (f *Folder) private(name string) error {
	info, err := f.root.Lstat(name)
	if err != nil {
		return err
	}
	owner, _ := info.Sys().(*syscall.Stat_t)
	switch uid := os.Getuid(); {
	case owner == nil || int(owner.Uid) != uid:
		return fmt.Errorf("%s is not yours (uid %d)", name, uid)
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a link", name)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to it: chmod go-w %s", f.path)
	}
	return nil
}

// Publish makes this node's key available to the other nodes.
func (f *Folder) Publish(node string, key ed25519.PublicKey) error {
	name := f.file(node)
	// Rename the complete file, because other nodes read at any time.
	err := f.root.WriteFile(name+".new", key, 0o600)
	if err == nil {
		err = f.root.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("pass the key of node %s on in %s: %w", node, f.path, err)
	}
	return nil
}

// Key waits for a node's key until ctx ends.
func (f *Folder) Key(ctx context.Context, node string) (ed25519.PublicKey, error) {
	for {
		key, err := f.read(node)
		if !errors.Is(err, fs.ErrNotExist) {
			return key, err
		}
		select {
		case <-time.After(folderPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for it in %s: %w; give --rendezvous-dir a folder that all nodes share", f.path, context.Cause(ctx))
		}
	}
}

// refresh reads a directory, which makes an NFS client revalidate its cache. Otherwise
// the client may report for half a minute that a file does not exist.
func (f *Folder) refresh(name string) error {
	directory, err := f.root.Open(name)
	if err != nil {
		return err
	}
	_, err = directory.Readdirnames(1)
	directory.Close()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (f *Folder) read(node string) (ed25519.PublicKey, error) {
	if err := f.refresh(f.below); err != nil {
		return nil, err
	}
	name := f.file(node)
	if err := f.private(name); err != nil {
		return nil, err
	}
	key, err := f.root.ReadFile(name)
	if err == nil && len(key) != ed25519.PublicKeySize {
		err = fmt.Errorf("%s holds %d bytes, want a key of %d", name, len(key), ed25519.PublicKeySize)
	}
	return key, err
}

// Withdraw removes a node's key.
func (f *Folder) Withdraw(node string) {
	_ = f.root.Remove(f.file(node))
	_ = f.root.Remove(f.below) // not empty: another node removes it
}

// Clear removes everything that the step has in the folder.
func (f *Folder) Clear() error { return f.root.RemoveAll(f.below) }

// Close closes the folder, and does not remove anything. It can be called twice.
func (f *Folder) Close() error { return f.root.Close() }

func (f *Folder) file(node string) string { return f.below + "/" + node }
