package main

import (
	"fmt"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"

	"berth.dev/berth/runtime/internal/pause"
)

// seedConfig is the section [plugins.'io.containerd.service.v1.berth-pause'].
type seedConfig struct {
	// Snapshotter gets the unpacked image; it must be the one that CRI uses.
	Snapshotter string `toml:"snapshotter"`
}

// seedPlugin makes the pause image present before CRI looks for it: CRI is
// started after every plugin of the service type.
func seedPlugin() *plugin.Registration {
	return &plugin.Registration{
		Type: plugins.ServicePlugin,
		ID:   "berth-pause",
		Requires: []plugin.Type{
			plugins.MetadataPlugin,
			plugins.LeasePlugin,
		},
		Config: &seedConfig{Snapshotter: "overlayfs"},
		InitFn: seed,
	}
}

func seed(ic *plugin.InitContext) (any, error) {
	name := ic.Config.(*seedConfig).Snapshotter
	instance, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	db := instance.(*metadata.DB)
	manager, err := ic.GetSingle(plugins.LeasePlugin)
	if err != nil {
		return nil, err
	}
	snapshotter := db.Snapshotter(name)
	if snapshotter == nil {
		return nil, fmt.Errorf("seed pause image: snapshotter %s is not there: %w", name, errdefs.ErrNotFound)
	}
	return struct{}{}, pause.Seed(namespaces.WithNamespace(ic.Context, "k8s.io"), pause.Stores{
		Content:         db.ContentStore(),
		Images:          metadata.NewImageStore(db),
		Snapshotter:     snapshotter,
		SnapshotterName: name,
		Leases:          manager.(leases.Manager),
	})
}
