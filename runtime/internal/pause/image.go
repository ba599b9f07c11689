// Package pause puts the image of the sandbox container into the stores of a containerd that
// is starting. The image is part of the containerd binary, so it cannot be missing and need
// not be pulled. That takes a few milliseconds, less than importing an archive.
package pause

import (
	"archive/tar"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// imageName is the image's name.
const imageName = "localhost/berth/pause:1"

// The programs are build products: a checkout without them still compiles.
//
//go:embed bin
var programs embed.FS

// image is a complete OCI image: its program, and three blobs with their descriptors.
type image struct {
	program                 []byte
	manifest, config, layer ocispec.Descriptor
	blobs                   map[digest.Digest][]byte
}

// newImage makes the image for an architecture in Go's terms.
func newImage(arch string) (*image, error) {
	program, err := programs.ReadFile("bin/pause-" + arch)
	if err != nil {
		return nil, fmt.Errorf("find pause program for %s (build with make -C runtime): %w", arch, err)
	}
	img := &image{program: program, blobs: map[digest.Digest][]byte{}}

	layer, err := archive(program)
	if err != nil {
		return nil, err
	}
	// The layer is not compressed, so its digest is also its diff ID.
	img.layer = img.add(ocispec.MediaTypeImageLayer, layer)
	config, err := json.Marshal(ocispec.Image{
		Platform: ocispec.Platform{Architecture: arch, OS: "linux"},
		Config:   ocispec.ImageConfig{Entrypoint: []string{"/pause"}},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{img.layer.Digest}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode configuration of pause image: %w", err)
	}
	img.config = img.add(ocispec.MediaTypeImageConfig, config)
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    img.config,
		Layers:    []ocispec.Descriptor{img.layer},
	})
	if err != nil {
		return nil, fmt.Errorf("encode manifest of pause image: %w", err)
	}
	img.manifest = img.add(ocispec.MediaTypeImageManifest, manifest)
	return img, nil
}

func (i *image) add(mediaType string, blob []byte) ocispec.Descriptor {
	d := digest.FromBytes(blob)
	i.blobs[d] = blob
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(blob))}
}

// chainID names the snapshot that holds the unpacked layer.
func (i *image) chainID() string {
	return identity.ChainID([]digest.Digest{i.layer.Digest}).String()
}

func archive(program []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	header := &tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(program)), ModTime: time.Unix(0, 0)}
	if err := w.WriteHeader(header); err != nil {
		return nil, fmt.Errorf("write layer of pause image: %w", err)
	}
	if _, err := w.Write(program); err != nil {
		return nil, fmt.Errorf("write layer of pause image: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write layer of pause image: %w", err)
	}
	return out.Bytes(), nil
}
