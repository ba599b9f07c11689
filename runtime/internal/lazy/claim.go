package lazy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ContentsLabel marks a layer that was made without its content. Its value is the
// digest of the layer's table of contents. The layer's chain ID is only a claim of
// the image that was pulled first, and other images find the layer under that ID.
const ContentsLabel = "containerd.io/snapshot/berth.contents"

// Snapshots returns the labels of a layer by its chain ID.
type Snapshots interface {
	Stat(ctx context.Context, key string) (snapshots.Info, error)
}

// Layers returns the layers of an image, without other blobs that its manifest may
// list.
func Layers(manifest ocispec.Manifest) []ocispec.Descriptor {
	return slices.DeleteFunc(slices.Clone(manifest.Layers), func(desc ocispec.Descriptor) bool { return !images.IsLayerType(desc.MediaType) })
}

// CheckClaims refuses an image if one of its layers exists and was made from
// another table of contents than the image names. So an image gets the content
// that it names, whichever image brought the layer. A layer's digest covers its
// table, so honest images pass.
func CheckClaims(ctx context.Context, store content.Provider, layers Snapshots, target ocispec.Descriptor) error {
	manifest, err := images.Manifest(ctx, store, target, platforms.Default())
	if err != nil {
		return fmt.Errorf("look whose layers an image has: %w", err)
	}
	ids, err := images.RootFS(ctx, store, manifest.Config)
	own := Layers(manifest)
	if err != nil || len(ids) != len(own) {
		return err // unpacking reports a mismatch
	}
	for i, chain := range identity.ChainIDs(ids) {
		info, err := layers.Stat(ctx, chain.String())
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look whose layers an image has: %w", err)
		}
		contents := info.Labels[ContentsLabel]
		if named := own[i].Annotations[estargz.TOCJSONDigestAnnotation]; contents != "" && contents != named {
			return fmt.Errorf("layer %s of the image (diff ID %s) has the table of contents %s in another image on this node, and %s in this one: one of the two is wrong, or lacks its annotation; run it without --lazy-pull: %w",
				own[i].Digest, ids[i], contents, cmp.Or(named, "an unknown one"), errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
