package lazy

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

type labels map[string]string

func (l labels) Stat(_ context.Context, key string) (snapshots.Info, error) {
	contents, there := l[key]
	if !there {
		return snapshots.Info{}, errdefs.ErrNotFound
	}
	return snapshots.Info{Labels: map[string]string{ContentsLabel: contents}}, nil
}

// TestCheckClaims: an image gets layers that another image brought under the same
// names only if it names the same table of contents.
func TestCheckClaims(t *testing.T) {
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put := func(mediaType string, value any) ocispec.Descriptor {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
		if err := content.WriteBlob(t.Context(), store, desc.Digest.String(), bytes.NewReader(text), desc); err != nil {
			t.Fatal(err)
		}
		return desc
	}
	ids := []digest.Digest{digest.FromString("one"), digest.FromString("two")}
	image := func(contents string) ocispec.Descriptor {
		config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: ids}}
		upper := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("upper")}
		if contents != "" {
			upper.Annotations = map[string]string{estargz.TOCJSONDigestAnnotation: contents}
		}
		return put(ocispec.MediaTypeImageManifest, ocispec.Manifest{
			MediaType: ocispec.MediaTypeImageManifest, Config: put(ocispec.MediaTypeImageConfig, config),
			Layers: []ocispec.Descriptor{
				{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("lower")},
				{MediaType: "application/vnd.in-toto+json", Digest: digest.FromString("no layer")}, upper,
			},
		})
	}
	upper := identity.ChainID(ids).String()
	for name, c := range map[string]struct {
		there labels
		own   string
		ok    bool
	}{
		"nothing is there":            {labels{}, "mine", true},
		"as a whole":                  {labels{ids[0].String(): "", upper: ""}, "", true},
		"the same":                    {labels{upper: "mine"}, "mine", true},
		"another's":                   {labels{upper: "other"}, "mine", false},
		"another's, and I fetch all":  {labels{upper: "other"}, "", false},
		"another's, of a layer below": {labels{ids[0].String(): "other"}, "mine", false},
	} {
		err := CheckClaims(t.Context(), store, c.there, image(c.own))
		if c.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "one of the two is wrong") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
