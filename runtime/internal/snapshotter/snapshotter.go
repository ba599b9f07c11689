// Package snapshotter keeps each layer of an image as one EROFS file, and makes the
// root file systems of containers from them. A root file system is an overlay: the
// container's writes above the merged layers, which another process serves through
// FUSE.
//
// The package is both the snapshotter and the differ of containerd, because each
// needs the files of the other. Package layer converts a layer.
package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/mounts"
)

// LayerMount is the type of the only mount of a snapshot that will become a layer.
// Its source is the path for the image.
const LayerMount = "berth/layer"

// The files and directories of a snapshot.
const (
	layerFile = "layer.erofs" // of a layer: its image
	treeDir   = "tree"        // of a layer: mount point of this layer merged with the layers below
	plainDir  = "plain"       // of a layer: its files unpacked, see Plain
	upperDir  = "fs"          // of a container: its writes
	workDir   = "work"        // of a container: overlayfs' working directory
)

// Plain returns the directory for the unpacked files of a layer, beside its image
// at path. If it exists, a container with only that layer uses it as the lower
// directory, and nothing is mounted. It is for images of a few files that every pod
// waits for.
func Plain(path string) string { return filepath.Join(filepath.Dir(path), plainDir) }

// Mounter mounts merged layers, the uppermost first, on a directory.
type Mounter interface {
	Mount(ctx context.Context, target string, layers []string) error
}

// Cache holds layers that other jobs have made. Take returns "" for a layer that the
// cache lacks.
type Cache interface {
	Take(digest.Digest) (path string, err error)
}

// Remote makes the file of a layer before its content arrives.
type Remote interface {
	Make(ctx context.Context, path string, layer lazy.Layer) error
}

// Snapshotter implements snapshots.Snapshotter.
type Snapshotter struct {
	// Remote is nil if layers are fetched as a whole. It is set before the first
	// call.
	Remote Remote
	// Owners reports foreign owners of files. It is set before the first call.
	Owners Owners

	root    string
	store   *storage.MetaStore
	mounter Mounter
	cache   Cache
	options []string

	// mounting is held while a tree is being mounted.
	mounting sync.Mutex
}

// New returns a snapshotter that keeps its files below root. It owns the store. The
// cache may be nil.
func New(root string, store *storage.MetaStore, mounter Mounter, cache Cache, overlayOptions []string) (*Snapshotter, error) {
	s := &Snapshotter{root: root, store: store, mounter: mounter, cache: cache, options: overlayOptions}
	if err := os.MkdirAll(s.dir(""), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of snapshots: %w", err)
	}
	return s, nil
}

func (s *Snapshotter) dir(id string, parts ...string) string {
	return filepath.Join(append([]string{s.root, "snapshots", id}, parts...)...)
}

// Close closes the store. Trees stay mounted, because containers may continue.
func (s *Snapshotter) Close() error { return s.store.Close() }

// Stat returns the metadata of a snapshot.
func (s *Snapshotter) Stat(ctx context.Context, key string) (info snapshots.Info, err error) {
	err = s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		_, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	return info, err
}

// Update changes the labels of a snapshot and returns its metadata.
func (s *Snapshotter) Update(ctx context.Context, info snapshots.Info, fields ...string) (updated snapshots.Info, err error) {
	err = s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		updated, err = storage.UpdateInfo(ctx, info, fields...)
		return err
	})
	return updated, err
}

// Walk calls visit for each snapshot.
func (s *Snapshotter) Walk(ctx context.Context, visit snapshots.WalkFunc, filters ...string) error {
	return s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, visit, filters...)
	})
}

// Usage returns the disk space and inodes that a snapshot uses.
func (s *Snapshotter) Usage(ctx context.Context, key string) (usage snapshots.Usage, err error) {
	var id string
	var info snapshots.Info
	err = s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		id, info, usage, err = storage.GetInfo(ctx, key)
		return err
	})
	if err != nil || info.Kind != snapshots.KindActive {
		return usage, err
	}
	written, err := continuity.DiskUsage(ctx, s.dir(id, upperDir))
	return snapshots.Usage(written), err
}

// Prepare makes a writable snapshot.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return s.create(ctx, snapshots.KindActive, key, parent, opts)
}

// View makes a read-only snapshot.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return s.create(ctx, snapshots.KindView, key, parent, opts)
}

// isLayer reports whether a snapshot will become a layer.
func isLayer(key string) bool {
	// containerd prepends a namespace and a number.
	return strings.HasPrefix(path.Base(key), snapshots.UnpackKeyPrefix+"-")
}

func (s *Snapshotter) create(ctx context.Context, kind snapshots.Kind, key, parent string, opts []snapshots.Opt) ([]mount.Mount, error) {
	var snapshot storage.Snapshot
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) (err error) {
		if snapshot, err = storage.CreateSnapshot(ctx, kind, key, parent, opts...); err != nil {
			return fmt.Errorf("create snapshot %s: %w", key, err)
		}
		// Create it within the transaction, so that Cleanup does not remove it.
		if err = os.Mkdir(s.dir(snapshot.ID), 0o700); err != nil {
			return fmt.Errorf("create snapshot %s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	result, err := s.furnish(ctx, snapshot, key)
	if err == nil && isLayer(key) {
		if err = s.fromCache(ctx, snapshot.ID, key, opts); err == nil && s.Remote != nil {
			err = s.fromRemote(ctx, snapshot.ID, key, opts)
		}
	}
	if errdefs.IsAlreadyExists(err) {
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(err, s.Remove(ctx, key))
	}
	return result, nil
}

// fromCache makes the layer at once if the cache has it. It returns
// ErrAlreadyExists, so that containerd does not fetch the layer.
func (s *Snapshotter) fromCache(ctx context.Context, id, key string, opts []snapshots.Opt) error {
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return err
		}
	}
	d, name := digest.Digest(info.Labels[imagestore.LayerLabel]), info.Labels[imagestore.NameLabel]
	if s.cache == nil || d == "" || name == "" {
		return nil
	}
	path, err := s.cache.Take(d)
	if err != nil || path == "" {
		if err != nil {
			log.G(ctx).WithError(err).Warn("a layer is not taken from the cache")
		}
		return nil
	}
	if err := os.Symlink(path, s.dir(id, layerFile)); err != nil {
		return fmt.Errorf("use layer of the cache: %w", err)
	}
	s.Owners.look(ctx, path)
	if err := s.Commit(ctx, name, key, opts...); err != nil {
		return err
	}
	return fmt.Errorf("prepare snapshot %s: layer %s is in the cache: %w", key, d, errdefs.ErrAlreadyExists)
}

// fromRemote makes the layer at once if its content can arrive later. Otherwise
// containerd fetches it.
func (s *Snapshotter) fromRemote(ctx context.Context, id, key string, opts []snapshots.Opt) error {
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return err
		}
	}
	layer := lazy.Layer{
		Image:    info.Labels[snapshotters.TargetRefLabel],
		Manifest: digest.Digest(info.Labels[snapshotters.TargetManifestDigestLabel]),
		Digest:   digest.Digest(info.Labels[snapshotters.TargetLayerDigestLabel]),
		Contents: digest.Digest(info.Labels[estargz.TOCJSONDigestAnnotation]),
	}
	name := info.Labels[imagestore.NameLabel]
	if layer.Image == "" || layer.Digest == "" || layer.Contents == "" || name == "" {
		return nil
	}
	if err := s.Remote.Make(ctx, s.dir(id, layerFile), layer); err != nil {
		log.G(ctx).WithError(err).Info("a layer is fetched as a whole")
		return nil
	}
	s.Owners.look(ctx, s.dir(id, layerFile))
	// Later users find the digest of the layer's table of contents here.
	opts = append(opts, func(info *snapshots.Info) error {
		info.Labels = maps.Clone(info.Labels)
		info.Labels[lazy.ContentsLabel] = layer.Contents.String()
		return nil
	})
	if err := s.Commit(ctx, name, key, opts...); err != nil {
		return err
	}
	return fmt.Errorf("prepare snapshot %s: the content of layer %s comes later: %w", key, layer.Digest, errdefs.ErrAlreadyExists)
}

// furnish makes the directories of a new snapshot and returns its mounts.
func (s *Snapshotter) furnish(ctx context.Context, snapshot storage.Snapshot, key string) ([]mount.Mount, error) {
	if !isLayer(key) && (snapshot.Kind == snapshots.KindActive || len(snapshot.ParentIDs) == 0) {
		for name, mode := range map[string]os.FileMode{upperDir: 0o755, workDir: 0o711} {
			if err := os.Mkdir(s.dir(snapshot.ID, name), mode); err != nil {
				return nil, fmt.Errorf("create snapshot %s: %w", key, err)
			}
		}
	}
	result, err := s.mounts(ctx, snapshot, key)
	if err != nil || isLayer(key) || snapshot.Kind != snapshots.KindActive || len(snapshot.ParentIDs) == 0 {
		return result, err
	}
	// The root directory of an overlay has the owner and mode of the upper
	// directory.
	below, _ := s.below(snapshot.ParentIDs)
	return result, likeRoot(s.dir(snapshot.ID, upperDir), below)
}

// likeRoot gives a directory the owner and permissions of another.
func likeRoot(dir, model string) error {
	info, err := os.Stat(model)
	if err != nil {
		return fmt.Errorf("read root of image: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("read root of image: status of type %T", info.Sys())
	}
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("set owner of root: %w", err)
	}
	if err := os.Chmod(dir, info.Mode()); err != nil {
		return fmt.Errorf("set permissions of root: %w", err)
	}
	return nil
}

// Mounts returns the mounts of a snapshot.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	var snapshot storage.Snapshot
	err := s.store.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		snapshot, err = storage.GetSnapshot(ctx, key)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find snapshot %s: %w", key, err)
	}
	return s.mounts(ctx, snapshot, key)
}

func (s *Snapshotter) mounts(ctx context.Context, snapshot storage.Snapshot, key string) ([]mount.Mount, error) {
	upper := s.dir(snapshot.ID, upperDir)
	switch {
	case isLayer(key):
		return []mount.Mount{{Type: LayerMount, Source: s.dir(snapshot.ID, layerFile)}}, nil
	case len(snapshot.ParentIDs) == 0 && snapshot.Kind == snapshots.KindActive:
		return []mount.Mount{{Type: "bind", Source: upper, Options: []string{"rw", "rbind"}}}, nil
	case len(snapshot.ParentIDs) == 0:
		return []mount.Mount{{Type: "bind", Source: upper, Options: []string{"ro", "rbind"}}}, nil
	}
	tree, err := s.tree(ctx, snapshot.ParentIDs)
	if err != nil {
		return nil, err
	}
	if snapshot.Kind != snapshots.KindActive {
		return []mount.Mount{{Type: "bind", Source: tree, Options: []string{"ro", "rbind"}}}, nil
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append([]string{
		"workdir=" + s.dir(snapshot.ID, workDir), "upperdir=" + upper, "lowerdir=" + tree,
	}, s.options...)}}, nil
}

// below returns the directory for the merged layers, the uppermost first, and
// whether it holds plain files, so that nothing needs to be mounted.
func (s *Snapshotter) below(ids []string) (dir string, plain bool) {
	if len(ids) == 1 {
		dir = s.dir(ids[0], plainDir)
		if _, err := os.Stat(dir); err == nil {
			return dir, true
		}
	}
	return s.dir(ids[0], treeDir), false
}

// tree mounts the merged layers, the uppermost first, unless they are mounted. It
// returns the directory.
func (s *Snapshotter) tree(ctx context.Context, ids []string) (string, error) {
	s.mounting.Lock()
	defer s.mounting.Unlock()
	target, plain := s.below(ids)
	if plain {
		return target, nil
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTCONN) {
		return "", fmt.Errorf("mount image: %w", err)
	}
	if mounts.Served(target) {
		return target, nil
	}
	// A mount without a server would stay below the new one.
	if err := mounts.Unmount(target); err != nil {
		return "", err
	}
	var layers []string
	for _, id := range ids {
		layers = append(layers, s.dir(id, layerFile))
	}
	return target, s.mounter.Mount(ctx, target, layers)
}

// Commit turns a snapshot with a layer's image into a layer. For the snapshot of a
// container it returns ErrNotImplemented.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	return s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		id, _, _, err := storage.GetInfo(ctx, key)
		if err != nil {
			return err
		}
		info, err := os.Stat(s.dir(id, layerFile))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("commit snapshot %s: what a container has written cannot become a layer: %w", key, errdefs.ErrNotImplemented)
		}
		if err != nil {
			return fmt.Errorf("commit snapshot %s: %w", key, err)
		}
		if _, err := storage.CommitActive(ctx, key, name, snapshots.Usage{Size: info.Size(), Inodes: 1}, opts...); err != nil {
			return fmt.Errorf("commit snapshot %s: %w", key, err)
		}
		return nil
	})
}

// Remove forgets a snapshot. Cleanup removes its files.
func (s *Snapshotter) Remove(ctx context.Context, key string) error {
	return s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		if _, _, err := storage.Remove(ctx, key); err != nil {
			return fmt.Errorf("remove snapshot %s: %w", key, err)
		}
		return nil
	})
}

// Cleanup removes the files of forgotten snapshots.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	var garbage []string
	// A write transaction keeps others from making a snapshot meanwhile.
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(s.dir(""))
		if err != nil {
			return fmt.Errorf("list snapshots: %w", err)
		}
		for _, e := range entries {
			if _, ok := known[e.Name()]; !ok {
				garbage = append(garbage, e.Name())
			}
		}
		return nil
	})
	for _, id := range garbage {
		if unmounted := mounts.Unmount(s.dir(id, treeDir)); unmounted != nil {
			err = errors.Join(err, unmounted)
			continue
		}
		err = errors.Join(err, os.RemoveAll(s.dir(id)))
	}
	return err
}
