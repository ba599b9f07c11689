package main

import (
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"

	"berth.dev/berth/runtime/internal/roots"
)

// overlayConfig is the section [plugins.'io.containerd.snapshotter.v1.overlayfs'].
type overlayConfig struct {
	MountOptions []string `toml:"mount_options"`
}

// overlayPlugin returns containerd's overlay snapshotter with a database that does
// not wait for the disk; containerd's registration has no setting for that. It also
// omits the probe for id-mapped mounts, which need root.
func overlayPlugin() *plugin.Registration {
	return &plugin.Registration{
		Type:   plugins.SnapshotPlugin,
		ID:     "overlayfs",
		Config: &overlayConfig{},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			root := ic.Properties[plugins.PropertyRootDir]
			ic.Meta.Exports[plugins.SnapshotterRootDir] = root
			database, err := openSnapshotStore(root)
			if err != nil {
				return nil, err
			}
			inner, err := overlay.NewSnapshotter(root,
				overlay.WithMetaStore(database),
				overlay.AsynchronousRemove,
				overlay.WithMountOptions(ic.Config.(*overlayConfig).MountOptions))
			if err != nil {
				return nil, err
			}
			return roots.New(inner, root), nil
		},
	}
}
