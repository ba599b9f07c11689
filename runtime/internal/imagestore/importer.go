package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ArchiveNamespace is the containerd namespace in which the names of imported
// images are noted once more. In their own namespace a later pull replaces an
// image and its labels, and nothing would tell it from one of a registry.
const ArchiveNamespace = "berth-archives"

// Importer imports archives into one containerd.
type Importer struct {
	client      *containerd.Client
	store       content.Store
	snapshotter string
}

// NewImporter returns an importer that unpacks for a snapshotter. The client
// stays the caller's.
func NewImporter(ctx context.Context, client *containerd.Client, snapshotter string) (*Importer, error) {
	answer, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.content.v1")
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its content store: %w", err)
	}
	store := client.ContentStore()
	for _, p := range answer.Plugins {
		if root := p.Exports["root"]; root != "" {
			store = newDirect(store, root)
		}
	}
	return &Importer{client: client, store: store, snapshotter: snapshotter}, nil
}

// Imported is one image under one name.
type Imported struct {
	Name   string
	Digest string
	Took   time.Duration
}

// Import imports every image of an archive made by docker save or podman save
// or holding an OCI layout, plain or compressed with gzip or zstd. Images come
// unpacked before they get their name, so that whoever sees one can use it.
func (i *Importer) Import(ctx context.Context, a Archive) ([]Imported, error) {
	begin := time.Now()
	file, err := os.Open(a.Path)
	if err != nil {
		return nil, fmt.Errorf("open image archive: %w", err)
	}
	defer file.Close()
	reader, err := decompress(file)
	if err != nil {
		return nil, fmt.Errorf("read image archive %s: %w", a.Path, err)
	}
	defer reader.Close()

	// Until an image has a name, its blobs and snapshots would be garbage.
	ctx, done, err := i.client.WithLease(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour))
	if err != nil {
		return nil, fmt.Errorf("create lease for image archive %s: %w", a.Path, err)
	}
	defer done(context.WithoutCancel(ctx))

	index, err := archive.ImportIndex(ctx, i.store, reader)
	if err != nil {
		return nil, fmt.Errorf("read image archive %s (docker save, podman save and OCI layouts are understood): %w", a.Path, err)
	}
	found, err := i.images(ctx, a, index)
	if err != nil {
		return nil, fmt.Errorf("read image archive %s: %w", a.Path, err)
	}
	var imported []Imported
	for _, img := range found {
		if err := i.publish(ctx, img); err != nil {
			return imported, fmt.Errorf("import image %s from %s: %w", img.Name, a.Path, err)
		}
		imported = append(imported, Imported{Name: img.Name, Digest: img.Target.Digest.String(), Took: time.Since(begin)})
	}
	return imported, nil
}

// images returns what an archive holds for this machine, and labels blobs so
// that those which belong to an image stay with it.
func (i *Importer) images(ctx context.Context, a Archive, index ocispec.Descriptor) ([]images.Image, error) {
	text, err := content.ReadBlob(ctx, i.store, index)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	var parsed ocispec.Index
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, fmt.Errorf("parse index: %w", err)
	}
	handler := images.FilterPlatforms(images.ChildrenHandler(i.store), platforms.Default())
	handler = images.SetChildrenLabels(i.store, handler)

	var found []images.Image
	var foreign []string
	anonymous := 0
	for _, m := range parsed.Manifests {
		if m.Platform != nil && !platforms.Default().Match(*m.Platform) {
			foreign = append(foreign, platforms.Format(*m.Platform))
			continue
		}
		if err := images.WalkNotEmpty(ctx, handler, m); err != nil {
			if errdefs.IsNotFound(err) {
				return nil, fmt.Errorf("archive is not complete: %w", err)
			}
			return nil, fmt.Errorf("read manifest %s: %w", m.Digest, err)
		}
		name, named, err := a.imageName(m.Annotations)
		if err != nil {
			return nil, err
		}
		if !named {
			anonymous++
		}
		found = append(found, images.Image{Name: name, Target: m})
	}
	switch {
	case len(found) == 0 && len(foreign) > 0:
		return nil, fmt.Errorf("it holds images for %v, none for %s", foreign, platforms.Format(platforms.DefaultSpec()))
	case len(found) == 0:
		return nil, errors.New("it holds no image")
	case a.Name != "" && len(found) > 1:
		return nil, fmt.Errorf("it holds %d images, so they cannot all be named %s: leave the name away", len(found), a.Name)
	case anonymous > 1:
		return nil, fmt.Errorf("it holds %d images without a name: save them one by one", anonymous)
	}
	return found, nil
}

// publish unpacks an image and then gives it its name.
func (i *Importer) publish(ctx context.Context, img images.Image) error {
	if err := containerd.NewImage(i.client, img).Unpack(ctx, i.snapshotter); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	if err := i.name(namespaces.WithNamespace(ctx, ArchiveNamespace), img); err != nil {
		return err
	}
	return i.name(ctx, img)
}

func (i *Importer) name(ctx context.Context, img images.Image) error {
	store := i.client.ImageService()
	_, err := store.Create(ctx, img)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, img, "target")
	}
	if err != nil {
		return fmt.Errorf("name: %w", err)
	}
	return nil
}
