package imagecache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/layerfile"
)

// Populator puts images into a cache.
type Populator struct {
	Cache    *layercache.Cache
	Platform ocispec.Platform
	// Chosen is set if the user named the platform. Then a cached image must be for that
	// platform.
	Chosen bool
	// Budget bounds what the images may contain.
	Budget budget.Budget
	// Progress receives the number of additional bytes and the total, from several
	// goroutines. A call with 0 additional bytes marks the beginning of an image's layers.
	Progress func(more, total int64)
}

// atOnce is the number of layers fetched and converted in parallel.
const atOnce = 3

// put adds an image to the cache. It fetches the blobs through from, and sets the
// image's name last, when everything else is there.
func (p *Populator) put(ctx context.Context, name string, target ocispec.Descriptor, from remotes.Fetcher) (layercache.Image, error) {
	image := layercache.Image{Name: name, Target: target, Platform: platforms.Format(p.Platform), Time: time.Now().UTC()}
	put := func(desc ocispec.Descriptor, parsed any) error {
		content, err := fetchText(ctx, from, desc, p.Budget)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(content, parsed); err != nil {
			return fmt.Errorf("parse %s: %w", desc.Digest, err)
		}
		image.Blobs = append(image.Blobs, desc)
		return p.Cache.PutBlob(desc, content)
	}
	manifest, config, err := p.describe(target, put)
	if err != nil {
		return image, err
	}
	if err := p.Budget.CheckLayers(len(manifest.Layers)); err != nil {
		return image, err
	}
	image.Layers = config.RootFS.DiffIDs
	if err := p.layers(ctx, manifest.Layers, image.Layers, from); err != nil {
		return image, err
	}
	return image, p.Cache.Name(image)
}

// describe returns an image's manifest for the platform, and its configuration. It
// calls get for each blob that it needs, and for the configuration last.
func (p *Populator) describe(desc ocispec.Descriptor, get func(ocispec.Descriptor, any) error) (manifest ocispec.Manifest, config ocispec.Image, err error) {
	if images.IsIndexType(desc.MediaType) {
		var index ocispec.Index
		if err = get(desc, &index); err == nil {
			desc, err = p.choose(index)
		}
		if err != nil {
			return manifest, config, err
		}
	}
	if !images.IsManifestType(desc.MediaType) {
		return manifest, config, fmt.Errorf("it is not an image, but of type %q", desc.MediaType)
	}
	if err := get(desc, &manifest); err != nil {
		return manifest, config, err
	}
	if err := get(manifest.Config, &config); err != nil {
		return manifest, config, err
	}
	if layers, known := len(manifest.Layers), len(config.RootFS.DiffIDs); layers != known {
		return manifest, config, fmt.Errorf("it has %d layers, but its configuration names %d", layers, known)
	}
	return manifest, config, p.checkPlatform(config.Platform)
}

// choose returns the descriptor of the platform's manifest.
func (p *Populator) choose(index ocispec.Index) (ocispec.Descriptor, error) {
	matcher := platforms.Only(p.Platform)
	var found []ocispec.Descriptor
	var there []string
	for _, m := range index.Manifests {
		if m.Platform == nil {
			continue
		}
		there = append(there, platforms.Format(*m.Platform))
		if matcher.Match(*m.Platform) {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		return ocispec.Descriptor{}, fmt.Errorf("there is none for %s, only for %v; name another with --platform", platforms.Format(p.Platform), there)
	}
	return slices.MinFunc(found, func(a, b ocispec.Descriptor) int {
		if matcher.Less(*a.Platform, *b.Platform) {
			return -1
		}
		return 1
	}), nil
}

func (p *Populator) checkPlatform(own ocispec.Platform) error {
	if own.OS == "" && own.Architecture == "" || platforms.Only(p.Platform).Match(own) {
		return nil
	}
	return fmt.Errorf("it is for %s, not for %s; name another with --platform", platforms.Format(own), platforms.Format(p.Platform))
}

// layers fetches the layers that the cache lacks.
func (p *Populator) layers(ctx context.Context, blobs []ocispec.Descriptor, ids []digest.Digest, from remotes.Fetcher) error {
	var total int64
	var missing []int
	for i, id := range ids {
		path, err := p.Cache.Take(id)
		if err != nil {
			return err
		}
		// A layer may occur twice, in particular an empty one.
		if path == "" && slices.Index(ids, id) == i {
			missing = append(missing, i)
			total += blobs[i].Size
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := p.Cache.FreeSpace(total); err != nil {
		return fmt.Errorf("bring layers of %d bytes: %w", total, err)
	}
	p.Progress(0, total)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	image := &budget.Image{}
	for _, i := range missing {
		group.Go(func() error {
			counted := func(n int) { p.Progress(int64(n), total) }
			_, err := p.Cache.Make(ids[i], func(path string) error {
				return p.bringLayer(ctx, path, blobs[i], ids[i], from, image, counted)
			})
			if err != nil {
				return fmt.Errorf("bring layer %s: %w", blobs[i].Digest, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// makeLayer converts a layer while it arrives, and then verifies the digests of the
// blob and of the layer.
func makeLayer(ctx context.Context, path string, blob ocispec.Descriptor, id digest.Digest, from remotes.Fetcher, limit int64, most *budget.Layer, count func(int)) error {
	if !images.IsLayerType(blob.MediaType) {
		return fmt.Errorf("it is of type %q, which is not a layer", blob.MediaType)
	}
	if err := blob.Digest.Validate(); err != nil {
		return err
	}
	content, err := from.Fetch(ctx, blob)
	if err != nil {
		return err
	}
	defer content.Close()
	// One additional byte is enough to detect a blob that is too long.
	checked := &verified{from: io.LimitReader(content, blob.Size+1), verifier: blob.Digest.Verifier(), count: count}
	made, err := layerfile.Convert(ctx, path, most.Packed(checked), limit, most)
	if err == nil {
		// The blob's digest covers the data after the compressed archive.
		_, err = io.Copy(io.Discard, checked)
	}
	if err != nil {
		if errors.Is(checked.failed, errBroken) && ctx.Err() == nil {
			// The decompressor may report only an unexpected end.
			return fmt.Errorf("after %d of %d bytes %w", checked.size, blob.Size, checked.failed)
		}
		// A blob with a wrong digest rarely unpacks, and the digest is the more
		// precise error. But do not fetch the rest of a layer without enough space
		// for it.
		if errors.Is(err, layerfile.ErrTooLarge) || errors.Is(err, budget.ErrExceeded) || layercache.NoSpace(err) {
			return err
		}
		if _, rest := io.Copy(io.Discard, checked); rest == nil && !checked.verifier.Verified() {
			return fmt.Errorf("the received data have another digest (%d of %d bytes): %w", checked.size, blob.Size, err)
		}
		return err
	}
	if !checked.verifier.Verified() || checked.size != blob.Size {
		return fmt.Errorf("the received data have another digest (%d of %d bytes)", checked.size, blob.Size)
	}
	if made.Digest != id {
		return fmt.Errorf("uncompressed, it is %s, but the image says %s", made.Digest, id)
	}
	return nil
}

// verified hashes and counts the bytes read through it.
type verified struct {
	from     io.Reader
	verifier digest.Verifier
	size     int64
	count    func(int)
	// failed is the read error, other than io.EOF.
	failed error
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.from.Read(p)
	_, _ = v.verifier.Write(p[:n]) // a hash never fails
	v.size += int64(n)
	if n > 0 {
		v.count(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		v.failed = err
	}
	return n, err
}

// fetchText fetches a manifest or a configuration.
func fetchText(ctx context.Context, from remotes.Fetcher, desc ocispec.Descriptor, b budget.Budget) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.MediaType, err)
	}
	content, err := from.Fetch(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	defer content.Close()
	text, err := io.ReadAll(io.LimitReader(content, b.Text()+1))
	if err == nil {
		err = b.CheckText(text)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	case desc.Digest.Algorithm().FromBytes(text) != desc.Digest:
		return nil, fmt.Errorf("fetch %s: the received data have another digest", desc.Digest)
	}
	return text, nil
}
