package imagestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/roots"
)

// ArchiveNamespace is the containerd namespace that records the names of imported
// images a second time. In the images' namespace a later pull replaces an image and
// its labels, and the image would look like one of a registry.
const ArchiveNamespace = "berth-archives"

// Importer imports archives into one containerd.
type Importer struct {
	client *containerd.Client
	store  content.Store
	// root is a directory on the same file system as store.
	root        string
	snapshotter string
	// snapshots is the directory of the snapshotter.
	snapshots string
	// shared is set if the snapshotter may have layers of other jobs.
	shared bool
}

// SharedExport is the key of a plugin export that a snapshotter sets if it may hold layers
// of other jobs. Such a snapshotter, asked for a layer by its digest, may answer that it exists.
const SharedExport = "berth_shared_layers"

// NewImporter returns an importer that unpacks for a snapshotter. The caller closes the
// client.
func NewImporter(ctx context.Context, client *containerd.Client, snapshotter string) (*Importer, error) {
	answer, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.content.v1")
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its content store: %w", err)
	}
	i := &Importer{client: client, store: client.ContentStore(), root: os.TempDir(), snapshotter: snapshotter}
	for _, p := range answer.Plugins {
		if root := p.Exports["root"]; root != "" {
			i.store, i.root = newDirect(i.store, root), root
		}
	}
	if answer, err = client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1"); err != nil {
		return nil, fmt.Errorf("ask containerd for its snapshotter: %w", err)
	}
	for _, p := range answer.Plugins {
		if p.ID == snapshotter {
			i.snapshots, i.shared = p.Exports[plugins.SnapshotterRootDir], p.Exports[SharedExport] != ""
		}
	}
	return i, nil
}

// Imported is one image under one name.
type Imported struct {
	Name   string
	Digest string
	// InPlace reports that the image's content was not copied.
	InPlace bool
	// Took is the time from the beginning of the import of the archive.
	Took time.Duration
}

// Import imports every image of an archive or folder. An archive comes from docker
// save or podman save, or holds an OCI layout, plain or compressed with gzip or zstd.
// A folder holds an OCI layout. Images are unpacked before they get their name, so
// that a pod that finds one can use it.
func (i *Importer) Import(ctx context.Context, a Archive) (imported []Imported, err error) {
	begin := time.Now()
	// Until an image has a name, its blobs and snapshots would be garbage.
	service := i.client.LeasesService()
	lease, err := service.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour))
	if err != nil {
		return nil, fmt.Errorf("create lease for image archive %s: %w", a.Path, err)
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if err == nil {
			_ = service.Delete(ctx, lease) // it expires by itself
			return
		}
		// The written data may be large, so its space is freed at once.
		err = errors.Join(err, service.Delete(ctx, lease, leases.SynchronousDelete))
	}()
	ctx = leases.WithLease(ctx, lease.ID)

	if !a.isRoot() {
		lying, index, err := OpenInPlace(ctx, a)
		if err != nil {
			return nil, err
		}
		if lying != nil {
			defer lying.Close()
			return i.importInPlace(ctx, a, lying, index)
		}
	}
	index, stays, err := i.read(ctx, a)
	if err != nil {
		return nil, err
	}
	texts := Texts{i.store, a.Budget.Layer(0)}
	found, err := Images(ctx, a, index, platforms.Default(), func(ctx context.Context, m ocispec.Descriptor) error { return i.labelBlobs(ctx, texts, m) })
	if err != nil {
		return nil, err
	}
	for _, img := range found {
		if err := i.publish(ctx, img); err != nil {
			return imported, fmt.Errorf("import image %s from %s: %w", img.Name, a.Path, err)
		}
		imported = append(imported, Imported{Name: img.Name, Digest: img.Target.Digest.String(), InPlace: stays, Took: time.Since(begin)})
	}
	return imported, nil
}

// inPlace is the name of the snapshotter with layers that may have their content elsewhere.
const inPlace = "erofs"

// read puts an archive into the store. A folder stays where it is, and so does a SIF
// file if possible; stays reports whether the image does.
func (i *Importer) read(ctx context.Context, a Archive) (index ocispec.Index, stays bool, err error) {
	if !a.isRoot() {
		if i.snapshotter == inPlace && i.snapshots != "" {
			index, stays, err = useSIF(ctx, i.store, a.Path, i.snapshots, a.Budget)
			if err != nil {
				return index, false, fmt.Errorf("read SIF image %s: %w", a.Path, err)
			}
		}
		if !stays {
			index, err = ReadArchive(ctx, i.store, i.root, a)
		}
		return index, stays, err
	}
	index, layer, err := readRoot(ctx, i.store, a.Path)
	if err == nil {
		err = roots.Record(i.snapshots, layer, a.Path)
	}
	if err != nil {
		return index, false, fmt.Errorf("use folder %s as an image: %w", a.Path, err)
	}
	return index, true, nil
}

// labelBlobs labels the blobs of an image so that garbage collection keeps them with it.
func (i *Importer) labelBlobs(ctx context.Context, t Texts, m ocispec.Descriptor) error {
	handler := images.FilterPlatforms(images.ChildrenHandler(t), platforms.Default())
	if err := images.WalkNotEmpty(ctx, images.SetChildrenLabels(i.store, handler), m); err != nil {
		return err
	}
	return i.labelLayers(ctx, t, m)
}

// labelLayers labels each layer with its uncompressed digest, as the image states it.
// A cache knows the layer by that digest. The digest is checked when the layer is
// unpacked.
func (i *Importer) labelLayers(ctx context.Context, t Texts, m ocispec.Descriptor) error {
	manifest, err := images.Manifest(ctx, t, m, platforms.Default())
	if err != nil {
		return err
	}
	if err := t.Most.CheckLayers(len(manifest.Layers)); err != nil {
		return err
	}
	if err := CheckPlatform(ctx, t, manifest.Config); err != nil {
		return err
	}
	ids, err := images.RootFS(ctx, t, manifest.Config)
	layers := lazy.Layers(manifest)
	if err != nil || len(ids) != len(layers) {
		return err // unpacking reports the cause
	}
	for k, layer := range layers {
		info := content.Info{Digest: layer.Digest, Labels: map[string]string{labels.LabelUncompressed: ids[k].String()}}
		// A missing layer was not needed.
		if _, err := i.store.Update(ctx, info, "labels."+labels.LabelUncompressed); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// CheckPlatform refuses an image for another kind of machine. A single manifest does
// not name its platform; the configuration does.
func CheckPlatform(ctx context.Context, store content.Provider, config ocispec.Descriptor) error {
	own, err := images.ConfigPlatform(ctx, store, config)
	if err != nil || own.Architecture == "" || platforms.Default().Match(own) {
		return err
	}
	return fmt.Errorf("it is for %s, not for %s: give an image for this kind of machine", platforms.Format(own), platforms.DefaultString())
}

// publish unpacks an image and then gives it its name, in the images' namespace and in
// ArchiveNamespace.
func (i *Importer) publish(ctx context.Context, img images.Image) error {
	if err := containerd.NewImage(i.client, img).Unpack(ctx, i.snapshotter); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	if err := lazy.CheckClaims(ctx, i.store, i.client.SnapshotService(i.snapshotter), img.Target); err != nil {
		return err
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
