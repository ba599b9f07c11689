package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/metadata"
	hosts "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	bolt "go.etcd.io/bbolt"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/mounts"
	"berth.dev/berth/runtime/internal/roots"
	"berth.dev/berth/runtime/internal/snapshotter"
)

// layersConfig is the section [plugins.'io.containerd.snapshotter.v1.erofs'].
type layersConfig struct {
	// Squash makes user and group 0 the owners of all files of images.
	Squash bool `toml:"squash"`
	// Cache is the folder of a cache that jobs share; empty for none. Job is the name
	// of this job on this node in the cache.
	Cache string `toml:"cache"`
	Job   string `toml:"job"`
	// CacheLimit is the number of bytes that the cache may take. With KeepNamed,
	// named images do not count.
	CacheLimit int64 `toml:"cache_limit"`
	KeepNamed  bool  `toml:"keep_named"`
	// Lazy makes the content of eStargz layers arrive when it is read. It comes from
	// the registries in the hosts.toml files of the folder Hosts, except Mirror: only
	// the sandbox reaches Mirror.
	Lazy   bool   `toml:"lazy"`
	Hosts  string `toml:"hosts"`
	Mirror string `toml:"mirror"`
}

// layers is the snapshotter, with the cache that the differ uses, too.
type layers struct {
	*roots.Snapshotter
	// root is the snapshotter's directory.
	root  string
	cache *layercache.Cache
	// folder is the folder of the cache, for messages.
	folder string
}

// cacheSign is the interval between a job's signs of life in the cache.
const cacheSign = time.Hour

// openCache opens the cache. It returns nil if none is configured, or if it cannot be
// opened. Then the cluster works without a cache, and the user gets a notice.
func openCache(ctx context.Context, config *layersConfig, notice func(string)) *layercache.Cache {
	if config.Cache == "" {
		return nil
	}
	cache, err := layercache.Open(config.Cache, config.Job, config.CacheLimit, func(text string) { log.G(ctx).Warn(text) })
	if err != nil {
		log.G(ctx).WithError(err).Warn("there is no cache of layers")
		notice(withoutCache(config.Cache, err))
		return nil
	}
	cache.KeepNamed = config.KeepNamed
	go func() {
		for {
			if err := errors.Join(cache.Alive(), cache.Trim(time.Now())); err != nil {
				log.G(ctx).WithError(err).Warn("the cache of layers is not maintained")
			}
			time.Sleep(cacheSign)
		}
	}()
	return cache
}

// withoutCache returns the notice that the run continues without the cache in a folder.
func withoutCache(folder string, err error) string {
	text := fmt.Sprintf("layers of images are not kept in %s: %v", folder, err)
	if layercache.NoSpace(err) {
		text += "; 'berth image gc --image-cache " + folder + " --image-cache-limit SIZE' makes room, --image-cache off does without"
	}
	return text
}

// layersPlugin returns the plugin of the snapshotter that keeps each layer in one file. fd
// is the socket to the role that serves the layers, or -1 without that role. notice
// notifies the user. most bounds the layers.
func layersPlugin(fd int, notice func(string), most budget.Budget) *plugin.Registration {
	return &plugin.Registration{
		Type:   plugins.SnapshotPlugin,
		ID:     "erofs",
		Config: &layersConfig{},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			if fd < 0 {
				return nil, fmt.Errorf("serve layers: nobody does: %w", plugin.ErrSkipPlugin)
			}
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			config := ic.Config.(*layersConfig)
			root := ic.Properties[plugins.PropertyRootDir]
			ic.Meta.Exports[plugins.SnapshotterRootDir] = root
			database, err := openSnapshotStore(root)
			if err != nil {
				return nil, err
			}
			conn, err := mounts.Conn(fd)
			if err != nil {
				return nil, errors.Join(err, database.Close())
			}
			client := mounts.NewClient(conn)
			client.Squash = config.Squash
			if client.IDs, err = idmap.Own(); err != nil {
				return nil, errors.Join(err, client.Close(), database.Close())
			}
			l := layers{root: root, cache: openCache(ic.Context, config, notice), folder: config.Cache}
			var cache snapshotter.Cache
			if l.cache != nil {
				cache = l.cache
				ic.Meta.Exports[imagestore.SharedExport] = "true"
			}
			// A layer does not depend on its parents, so layers are converted in
			// parallel, which the capability rebase permits. It excludes cached and lazy
			// layers, because containerd looks for them by their parent.
			if config.Lazy {
				// Without these annotations a layer cannot be assigned to its image.
				ic.Meta.Exports["enable_remote_snapshot_annotations"] = "true"
			} else if cache == nil {
				ic.Meta.Capabilities = append(ic.Meta.Capabilities, "rebase")
			}
			inner, err := snapshotter.New(root, database, client, cache, []string{"index=off", "userxattr", "volatile"})
			if err != nil {
				return nil, err
			}
			inner.Owners = snapshotter.Owners{IDs: client.IDs, Notice: notice}
			if config.Lazy {
				inner.Remote = lazy.Maker{
					Hosts: hosts.ConfigureHosts(ic.Context, hosts.HostOptions{HostDir: hosts.HostDirFromRoot(config.Hosts)}), Not: config.Mirror, Keep: client.Login, Budget: most,
				}
			}
			l.Snapshotter = roots.New(inner, root)
			return l, nil
		},
	}
}

// openSnapshotStore opens the snapshotter's database. It does not wait for the disk, because
// there are four transactions for each container, and no data of a node outlives the node.
func openSnapshotStore(root string) (*storage.MetaStore, error) {
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
	return database, nil
}

// layerDiffer returns the plugin of the differ that writes layers for layersPlugin.
func layerDiffer(notice func(string), most budget.Budget) *plugin.Registration {
	return &plugin.Registration{
		Type:     plugins.DiffPlugin,
		ID:       "erofs",
		Requires: []plugin.Type{plugins.MetadataPlugin, plugins.SnapshotPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			db, err := ic.GetSingle(plugins.MetadataPlugin)
			if err != nil {
				return nil, err
			}
			differ := snapshotter.Differ{Content: db.(*metadata.DB).ContentStore(), Budget: most, Images: &budget.Images{}, Owners: snapshotter.Owners{Notice: notice}}
			if differ.IDs, err = idmap.Own(); err != nil {
				return nil, err
			}
			l, err := ic.GetByID(plugins.SnapshotPlugin, "erofs")
			if err == nil {
				differ.Folder = l.(layers).root
			}
			if err == nil && l.(layers).cache != nil {
				differ.Cache = l.(layers).cache
				var once sync.Once // the error of all layers would be the same
				differ.Unpublished = func(err error) {
					once.Do(func() { notice(withoutCache(l.(layers).folder, err)) })
				}
			}
			return differ, nil
		},
	}
}
