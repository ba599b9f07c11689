package main

import (
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"

	"berth.dev/berth/runtime/internal/peers"
)

// contentPlugin returns containerd's content store. It shares layers with the other
// nodes, if there are any, and works without them.
func contentPlugin(counts *peers.Counts) *plugin.Registration {
	return &plugin.Registration{
		Type:   plugins.ContentPlugin,
		ID:     "content",
		Config: &peers.Config{},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			root := ic.Properties[plugins.PropertyRootDir]
			ic.Meta.Exports["root"] = root
			config := ic.Config.(*peers.Config)
			if len(config.Nodes) > 1 {
				store, err := peers.Open(ic.Context, root, *config, counts)
				if err == nil {
					return store, nil
				}
				log.G(ic.Context).WithError(err).Warn("all layers come from their registries")
			}
			return peers.NewLocal(root)
		},
	}
}
