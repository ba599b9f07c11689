package main

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/image"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A pull ends at the configuration of an image for another architecture: containerd
// fetches layers only after it has called the filter for the configuration.
func TestPulledArchitecture(t *testing.T) {
	for architecture, want := range map[string]string{
		runtime.GOARCH: "", "": "", "s390x": "it is for linux/s390x, not for " + platforms.DefaultString(),
	} {
		store, err := local.NewStore(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		put := func(mediaType string, value any) ocispec.Descriptor {
			data, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
			if err := content.WriteBlob(t.Context(), store, desc.Digest.String(), bytes.NewReader(data), desc); err != nil {
				t.Fatal(err)
			}
			return desc
		}
		config := put(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: architecture}})
		var pulled any = checked{pulls: &pulls{}, imageStore: image.NewStore("app:1", image.WithPlatforms(platforms.DefaultSpec()))}
		filter := pulled.(transfer.ImageFilterer).ImageFilter(images.ChildrenHandler(store), store)
		_, err = filter(t.Context(), config)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("for %q: %v, want %q", architecture, err, want)
		}
	}
}
