package imagecache

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/fuzzbound"
)

// FuzzDescribe parses descriptions of images by registries and archives.
func FuzzDescribe(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","platform":{"os":"linux","architecture":"amd64"}}]}`),
		[]byte(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[{"size":1}]}`),
		[]byte(`{"os":"linux","architecture":"amd64","rootfs":{"diff_ids":["sha256:0"]}}`), true)
	f.Add([]byte(`{}`), []byte(`{}`), []byte(`{"os":"linux"}`), false)
	f.Fuzz(func(t *testing.T, index, manifest, config []byte, many bool) {
		fuzzbound.Watch(t)
		p := &Populator{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}}
		target := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}
		if many {
			target.MediaType = ocispec.MediaTypeImageIndex
		}
		read := [][]byte{index, manifest, config}
		if !many {
			read = read[1:]
		}
		described, parsed, err := p.describe(target, func(_ ocispec.Descriptor, into any) error {
			text := read[0]
			read = read[1:]
			return json.Unmarshal(text, into)
		})
		if err != nil {
			return
		}
		if len(described.Layers) != len(parsed.RootFS.DiffIDs) || len(read) > 0 {
			t.Errorf("%d layers, %d named, %d texts not read", len(described.Layers), len(parsed.RootFS.DiffIDs), len(read))
		}
	})
}

// FuzzHome parses the users of an image, for a bundle.
func FuzzHome(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\nme:x:7:7::/home/me:\n"), "7:7")
	f.Add([]byte(":::::relative"), "")
	f.Fuzz(func(t *testing.T, passwd []byte, user string) {
		fuzzbound.Watch(t)
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "etc"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "etc", "passwd"), passwd, 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if got := home(root, user); !filepath.IsAbs(got) {
			t.Errorf("%q is not a folder", got)
		}
	})
}
