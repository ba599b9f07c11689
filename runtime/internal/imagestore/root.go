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
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/sif"
)

// isRoot reports whether an archive is in fact a folder with an unpacked image,
// such as on CVMFS.
func (a Archive) isRoot() bool {
	info, err := os.Stat(a.Path)
	return err == nil && info.IsDir() && !isLayout(a.Path)
}

// readRoot puts an image with one layer into a store, and returns its index and the digest of
// the layer. The layer stands for a folder, and contains only the folder's name.
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
	desc, err := writePlaceholder(ctx, store, folder)
	if err != nil {
		return index, "", err
	}
	index, err = writeImage(ctx, store, desc, config)
	return index, desc.Digest, err
}

// writePlaceholder puts a placeholder layer into a store. The layer holds only a
// description.
func writePlaceholder(ctx context.Context, store content.Store, what string) (ocispec.Descriptor, error) {
	archive, err := placeholder(what)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(archive), Size: int64(len(archive))}
	return desc, content.WriteBlob(ctx, store, "stand-in-"+desc.Digest.Encoded(), bytes.NewReader(archive), desc)
}

// placeholder returns the archive of a placeholder layer. A pod that sees this layer by mistake
// finds the description there.
func placeholder(what string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: "in-place-of", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(what))})
	}
	if err == nil {
		_, err = w.Write([]byte(what))
	}
	return out.Bytes(), errors.Join(err, w.Close())
}
