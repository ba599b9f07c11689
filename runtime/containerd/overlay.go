package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	bolt "go.etcd.io/bbolt"
)

// overlayConfig is the section [plugins.'io.containerd.snapshotter.v1.overlayfs'].
type overlayConfig struct {
	MountOptions []string `toml:"mount_options"`
}

// overlayPlugin is containerd's overlay snapshotter with a database that does
// not wait for the disk, which containerd's own registration has no setting
// for: four transactions per container would each take a turn of the disk, and
// nothing of a node outlives it. The probe for id-mapped mounts is left out
// too: they need root.
func overlayPlugin() *plugin.Registration {
	return &plugin.Registration{
		Type:   plugins.SnapshotPlugin,
		ID:     "overlayfs",
		Config: &overlayConfig{},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			root := ic.Properties[plugins.PropertyRootDir]
			ic.Meta.Exports[plugins.SnapshotterRootDir] = root
			if err := os.MkdirAll(root, 0o700); err != nil {
				return nil, fmt.Errorf("create directory of snapshots: %w", err)
			}
			database, err := storage.NewMetaStore(filepath.Join(root, "metadata.db"), func(o *bolt.Options) error {
				o.NoSync, o.NoGrowSync, o.NoFreelistSync = true, true, true
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("open database of snapshots: %w", err)
			}
			return overlay.NewSnapshotter(root,
				overlay.WithMetaStore(database),
				overlay.AsynchronousRemove,
				overlay.WithMountOptions(ic.Config.(*overlayConfig).MountOptions))
		},
	}
}
