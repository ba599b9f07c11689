package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/mirror"
)

// mirrorConfig is the section [plugins.'io.containerd.service.v1.berth-mirror'].
type mirrorConfig struct {
	// Address is the host:port to listen on; empty for no mirror.
	Address string `toml:"address"`
	// Hosts is the directory of hosts.toml files. The mirror adds itself there
	// before the registry of a cached image when the image is pulled. Hosts is
	// empty if the mirror stands before all registries.
	Hosts string `toml:"hosts"`
}

// mirrorPlugin returns the plugin that serves images of archives, and named images in the
// cache, to this daemon. A separate process would cost startup time and memory in every
// cluster, and this process has the data anyway.
func mirrorPlugin(around *pulls) *plugin.Registration {
	return &plugin.Registration{
		Type:     plugins.ServicePlugin,
		ID:       "berth-mirror",
		Requires: []plugin.Type{plugins.MetadataPlugin, plugins.SnapshotPlugin},
		Config:   &mirrorConfig{},
		InitFn:   func(ic *plugin.InitContext) (any, error) { return startMirror(ic, around) },
	}
}

// runningMirror is the mirror's server. The daemon closes it at its end.
type runningMirror struct{ *http.Server }

func startMirror(ic *plugin.InitContext, around *pulls) (any, error) {
	config := ic.Config.(*mirrorConfig)
	if config.Address == "" {
		return nil, fmt.Errorf("mirror of archives: no address given: %w", plugin.ErrSkipPlugin)
	}
	instance, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	db := instance.(*metadata.DB)
	listener, err := net.Listen("tcp", config.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for the mirror of archives: %w", err)
	}
	known := knownImages{Store: metadata.NewImageStore(db)}
	blobs := knownBlobs{Store: db.ContentStore()}
	if l, err := ic.GetByID(plugins.SnapshotPlugin, "erofs"); err == nil && l.(layers).cache != nil {
		known.cache, blobs.cache = l.(layers).cache, l.(layers).cache
		if config.Hosts != "" {
			mirrors := &imagestore.Mirrors{Dir: config.Hosts, Address: config.Address}
			around.announce = func(ctx context.Context, image string) { known.announce(ctx, mirrors, image) }
		}
	}
	handler := &mirror.Server{Names: known, Content: blobs}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		// The kubelet's images are in this namespace.
		BaseContext: func(net.Listener) context.Context { return namespaces.WithNamespace(ic.Context, "k8s.io") },
	}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.G(ic.Context).WithError(err).Error("mirror of archives ended")
		}
	}()
	return runningMirror{server}, nil
}

// knownImages looks up names in the namespace where the importer records them, and
// then in the cache, which may be nil.
type knownImages struct {
	images.Store
	cache *layercache.Cache
}

func (k knownImages) Get(ctx context.Context, name string) (images.Image, error) {
	image, err := k.Store.Get(namespaces.WithNamespace(ctx, imagestore.ArchiveNamespace), name)
	if k.cache == nil || !errdefs.IsNotFound(err) {
		return image, err
	}
	kept, err := k.cache.Image(name, platforms.Default())
	if errors.Is(err, layercache.ErrNoImage) {
		err = errors.Join(err, errdefs.ErrNotFound)
	}
	return images.Image{Name: name, Target: kept.Target}, err
}

func (k knownImages) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	all, err := k.Store.List(namespaces.WithNamespace(ctx, imagestore.ArchiveNamespace), filters...)
	if err != nil || k.cache == nil {
		return all, err
	}
	kept, err := k.cache.Images()
	if err != nil {
		log.G(ctx).WithError(err).Warn("not all images of the cache can be used")
	}
	for _, image := range kept {
		all = append(all, images.Image{Name: image.Name, Target: image.Target})
	}
	return all, nil
}

// announce makes containerd ask the mirror for an image that is about to be pulled if
// the cache has it. Other jobs may have added it since this daemon started.
func (k knownImages) announce(ctx context.Context, mirrors *imagestore.Mirrors, image string) {
	_, err := k.cache.Image(image, platforms.Default())
	if err == nil {
		err = mirrors.Add(image)
	}
	if err != nil && !errors.Is(err, layercache.ErrNoImage) {
		log.G(ctx).WithError(err).Warn("an image of the cache is pulled from its registry")
	}
}

// knownBlobs looks up blobs in containerd, and then in the cache, which has manifests and
// configurations. Cached layers are used in place, so nobody requests them here.
type knownBlobs struct {
	content.Store
	cache *layercache.Cache
}

func (k knownBlobs) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	blob, err := k.Store.ReaderAt(ctx, desc)
	if k.cache == nil || !errdefs.IsNotFound(err) {
		return blob, err
	}
	text, err := k.cache.Blob(desc.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return textBlob{bytes.NewReader(text)}, nil
}

// textBlob is a manifest or configuration in memory.
type textBlob struct{ *bytes.Reader }

func (textBlob) Close() error { return nil }
