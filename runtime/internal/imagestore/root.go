package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/sif"
)

// isRoot tells whether an archive is none, but a folder in which an image was
// unpacked, such as those of CVMFS.
func (a Archive) isRoot() bool {
	info, err := os.Stat(a.Path)
	return err == nil && info.IsDir()
}

// readRoot puts an image into a store whose layer stands for a folder: it holds
// nothing but the folder's name.
func readRoot(ctx context.Context, store content.Store, folder string) (index ocispec.Index, layer digest.Digest, err error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return index, "", err
	}
	defer root.Close()
	config, known, err := sif.Describe(root)
	if err != nil {
		return index, "", err
	}
	if !known {
		config.OS, config.RootFS.Type = "linux", "layers"
		config.Config = ocispec.ImageConfig{
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/sh"},
		}
	}
	config.Architecture = runtime.GOARCH
	archive, err := standIn(folder)
	if err != nil {
		return index, "", err
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(archive), Size: int64(len(archive))}
	if err := content.WriteBlob(ctx, store, "root-"+desc.Digest.Encoded(), bytes.NewReader(archive), desc); err != nil {
		return index, "", err
	}
	config.RootFS.DiffIDs = []digest.Digest{desc.Digest}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Layers: []ocispec.Descriptor{desc},
	}
	if manifest.Config, err = writeJSON(ctx, store, ocispec.MediaTypeImageConfig, config); err != nil {
		return index, "", err
	}
	target, err := writeJSON(ctx, store, ocispec.MediaTypeImageManifest, manifest)
	target.Platform = &config.Platform
	return ocispec.Index{Manifests: []ocispec.Descriptor{target}}, desc.Digest, err
}

// standIn is the archive of that layer. What a pod sees if the folder is not
// mounted in its place says so.
func standIn(folder string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: "in-place-of", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(folder))})
	}
	if err == nil {
		_, err = w.Write([]byte(folder))
	}
	return out.Bytes(), errors.Join(err, w.Close())
}
