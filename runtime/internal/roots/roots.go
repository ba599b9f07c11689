// Package roots uses folders of the host that contain unpacked images as the
// root file systems of containers, without copying them. A placeholder layer
// represents each folder. containerd handles the placeholder like any other layer, but the
// folder is mounted instead, below what a container writes. Package
// imagestore handles an image's other metadata.
package roots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
)

// folders is the snapshotter's subdirectory with a link to each folder, named after
// the digest of its placeholder layer. The links exist because overlayfs options
// can contain neither colons nor commas.
const folders = "roots"

func link(snapshotter string, layer digest.Digest) string {
	return filepath.Join(snapshotter, folders, layer.Encoded())
}

// Record records in a snapshotter's directory that a layer stands for a folder.
func Record(snapshotter string, layer digest.Digest, folder string) error {
	if err := layer.Validate(); err != nil {
		return fmt.Errorf("use %s as an image: %w", folder, err)
	}
	name := link(snapshotter, layer)
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		err = os.Symlink(folder, name)
	}
	if errors.Is(err, fs.ErrExist) {
		var there string
		if there, err = os.Readlink(name); err == nil && there != folder {
			err = fmt.Errorf("layer %s stands for %s", layer, there)
		}
	}
	if err != nil {
		return fmt.Errorf("use %s as an image: %w", folder, err)
	}
	return nil
}

// Snapshotter wraps another snapshotter, and mounts folders instead of their
// placeholder layers.
type Snapshotter struct {
	snapshots.Snapshotter
	// root is the directory of the wrapped snapshotter.
	root string
	// foreign owns files whose owner has no ID in this namespace.
	foreign uint32
}

// defaultForeign is the kernel's default for foreign, the overflow uid.
const defaultForeign = 65534

// New returns a snapshotter that wraps another one and uses its directory.
func New(inner snapshots.Snapshotter, root string) *Snapshotter {
	s := &Snapshotter{Snapshotter: inner, root: root, foreign: defaultForeign}
	text, err := os.ReadFile("/proc/sys/fs/overflowuid")
	if uid, bad := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 32); err == nil && bad == nil {
		s.foreign = uint32(uid)
	}
	return s
}

// Prepare makes a writable snapshot.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := s.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err != nil {
		return nil, err
	}
	folder, err := s.replace(parent, mounts)
	if err == nil && folder != "" {
		err = s.own(folder, mounts)
	}
	if err != nil {
		return nil, errors.Join(err, s.Remove(ctx, key))
	}
	return mounts, nil
}

// View makes a read-only snapshot.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := s.Snapshotter.View(ctx, key, parent, opts...)
	if err != nil {
		return nil, err
	}
	if _, err := s.replace(parent, mounts); err != nil {
		return nil, errors.Join(err, s.Remove(ctx, key))
	}
	return mounts, nil
}

// Mounts returns the mounts of a snapshot.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	mounts, err := s.Snapshotter.Mounts(ctx, key)
	if err != nil {
		return nil, err
	}
	info, err := s.Stat(ctx, key)
	if err != nil {
		return nil, err
	}
	_, err = s.replace(info.Parent, mounts)
	return mounts, err
}

// Cleanup removes the files of forgotten snapshots.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	if c, ok := s.Snapshotter.(snapshots.Cleaner); ok {
		return c.Cleanup(ctx)
	}
	return nil
}

const (
	lower = "lowerdir="
	upper = "upperdir="
)

// replace changes the mounts to use the folder that a parent stands for, and
// returns the folder. For an ordinary layer it returns "".
func (s *Snapshotter) replace(parent string, mounts []mount.Mount) (string, error) {
	// containerd prepends a namespace and a number.
	layer := digest.Digest(path.Base(parent))
	if layer.Validate() != nil {
		return "", nil
	}
	name := link(s.root, layer)
	folder, err := os.Readlink(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the folder of an image: %w", err)
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return "", fmt.Errorf("use %s as an image: the folder does not exist any more: %w", folder, errors.Join(err, syscall.ENOTDIR))
	}
	for i, m := range mounts {
		switch m.Type {
		case "overlay":
			mounts[i].Options = slices.Clone(m.Options)
			for k, option := range m.Options {
				if strings.HasPrefix(option, lower) {
					mounts[i].Options[k] = lower + name
				}
			}
		case "bind":
			mounts[i].Source = name
		}
	}
	return folder, nil
}

// withOwn lists the directories whose subdirectories containers also write to.
var withOwn = []string{"", "var"}

// own creates, in the container's upper directory, those subdirectories of withOwn that
// have a foreign owner in the folder. An image that was unpacked for all users of a site
// has such directories. overlayfs cannot copy their owner, so containers could not write
// below them.
func (s *Snapshotter) own(folder string, mounts []mount.Mount) error {
	// The folder of a tag is often a link to a versioned folder.
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return fmt.Errorf("use an image: %w", err)
	}
	for _, m := range mounts {
		for _, option := range m.Options {
			to, found := strings.CutPrefix(option, upper)
			if m.Type != "overlay" || !found {
				continue
			}
			for _, parent := range withOwn {
				if err := s.ownIn(filepath.Join(folder, parent), filepath.Join(to, parent)); err != nil {
					return fmt.Errorf("use %s as an image: %w", folder, err)
				}
			}
		}
	}
	return nil
}

// ownIn creates in one directory the subdirectories that have a foreign owner in another.
func (s *Snapshotter) ownIn(from, to string) error {
	if info, err := os.Lstat(from); err != nil || !info.IsDir() {
		return nil // for example, an image without /var
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != s.foreign {
			continue
		}
		// Keep private directories private.
		if info.Mode().Perm()&0o005 != 0o005 {
			continue
		}
		name := filepath.Join(to, e.Name())
		if err := os.MkdirAll(name, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(name, info.Mode().Perm()|info.Mode()&fs.ModeSticky); err != nil {
			return err
		}
	}
	return nil
}
