package imagecache

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/layercache"
)

// Export writes an image as an archive with an OCI layout. Its layers are made of
// their files in the cache: what they hold is the same, but not their digests, nor
// therefore the image's.
func Export(ctx context.Context, cache *layercache.Cache, image layercache.Image, path string) (err error) {
	config, err := configuration(cache, image)
	if err != nil {
		return fmt.Errorf("export %s: %w", image.Name, err)
	}
	var layers []exported
	defer func() {
		for _, l := range layers {
			l.file.Close()
		}
	}()
	config.RootFS.DiffIDs = nil
	for _, id := range image.Layers {
		l, err := openLayer(ctx, cache, id)
		if err != nil {
			return fmt.Errorf("export %s: layer %s: %w", image.Name, id, err)
		}
		layers = append(layers, l)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.desc.Digest)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("export %s: %w", image.Name, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("export %s to %s: %w", image.Name, path, errors.Join(err, temporary.Close(), os.Remove(temporary.Name())))
		}
	}()
	if err := writeArchive(ctx, temporary, image.Name, config, layers); err != nil {
		return err
	}
	if err := temporary.Chmod(0o644); err != nil {
		return err
	}
	return errors.Join(os.Rename(temporary.Name(), path), temporary.Close())
}

// configuration is the image's own, of which only the layers' digests change.
func configuration(cache *layercache.Cache, image layercache.Image) (config ocispec.Image, err error) {
	for _, desc := range image.Blobs {
		if !images.IsConfigType(desc.MediaType) {
			continue
		}
		text, err := cache.Blob(desc.Digest)
		if err != nil {
			return config, err
		}
		return config, json.Unmarshal(text, &config)
	}
	return config, errors.New("its configuration is not there: pull it again")
}

// exported is a layer that becomes an archive.
type exported struct {
	file  *os.File
	image *erofs.Image
	desc  ocispec.Descriptor
}

// openLayer opens a layer, and reads it once to know what its archive will be.
func openLayer(ctx context.Context, cache *layercache.Cache, id digest.Digest) (l exported, err error) {
	path, err := cache.Take(id)
	if err == nil && path == "" {
		err = fmt.Errorf("%w: pull the image again", fs.ErrNotExist)
	}
	if err != nil {
		return l, err
	}
	if l.file, err = os.Open(path); err != nil {
		return l, err
	}
	info, err := l.file.Stat()
	if err == nil {
		l.image, err = erofs.Open(l.file, info.Size())
	}
	hash := sha256.New()
	count := &counted{ctx: ctx, to: hash}
	if err == nil {
		err = layer.Archive(l.image, count)
	}
	if err != nil {
		l.file.Close()
		return l, err
	}
	l.desc = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.NewDigest(digest.SHA256, hash), Size: count.size}
	return l, nil
}

// counted counts what is written, until ctx ends.
type counted struct {
	ctx  context.Context
	to   io.Writer
	size int64
}

func (c *counted) Write(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	c.size += int64(len(p))
	return c.to.Write(p)
}

func writeArchive(ctx context.Context, to io.Writer, name string, config ocispec.Image, layers []exported) error {
	w := tar.NewWriter(to)
	put := func(name string, size int64, write func(io.Writer) error) error {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Format: tar.FormatPAX})
		if err != nil {
			return err
		}
		return write(w)
	}
	text := func(name string, value any) (ocispec.Descriptor, error) {
		encoded, err := json.Marshal(value)
		desc := ocispec.Descriptor{Digest: digest.FromBytes(encoded), Size: int64(len(encoded))}
		if name == "" {
			name = blobName(desc.Digest)
		}
		if err != nil {
			return desc, err
		}
		return desc, put(name, desc.Size, func(w io.Writer) error {
			_, err := w.Write(encoded)
			return err
		})
	}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	written := map[digest.Digest]bool{}
	for _, l := range layers {
		manifest.Layers = append(manifest.Layers, l.desc)
		if written[l.desc.Digest] {
			continue
		}
		written[l.desc.Digest] = true
		if err := put(blobName(l.desc.Digest), l.desc.Size, func(w io.Writer) error {
			return layer.Archive(l.image, &counted{ctx: ctx, to: w})
		}); err != nil {
			return err
		}
	}
	var err error
	if manifest.Config, err = text("", config); err != nil {
		return err
	}
	manifest.Config.MediaType = ocispec.MediaTypeImageConfig
	desc, err := text("", manifest)
	if err != nil {
		return err
	}
	desc.MediaType, desc.Platform = ocispec.MediaTypeImageManifest, &config.Platform
	desc.Annotations = map[string]string{images.AnnotationImageName: name, ocispec.AnnotationRefName: name}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{desc}}
	if _, err := text(ocispec.ImageIndexFile, index); err != nil {
		return err
	}
	if _, err := text(ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}); err != nil {
		return err
	}
	// For 'docker load' of versions that know no layouts.
	docker := dockerManifest{Config: blobName(manifest.Config.Digest), RepoTags: []string{name}}
	for _, l := range layers {
		docker.Layers = append(docker.Layers, blobName(l.desc.Digest))
	}
	if _, err := text("manifest.json", []dockerManifest{docker}); err != nil {
		return err
	}
	return w.Close()
}

type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func blobName(d digest.Digest) string {
	return filepath.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}
