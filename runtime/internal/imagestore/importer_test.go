package imagestore

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestImagesOfOtherMachinesAreRefused(t *testing.T) {
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for architecture, want := range map[string]string{runtime.GOARCH: "", "": "", "s390x": "it is for linux/s390x, not for linux/" + runtime.GOARCH} {
		text := fmt.Appendf(nil, `{"architecture":%q,"os":"linux"}`, architecture)
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(text), Size: int64(len(text))}
		if err := content.WriteBlob(t.Context(), store, "config-"+architecture, bytes.NewReader(text), desc); err != nil {
			t.Fatal(err)
		}
		err := CheckPlatform(t.Context(), store, desc)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("an image for %q: %v, want %q", architecture, err, want)
		}
	}
}
