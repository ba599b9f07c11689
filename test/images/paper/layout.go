package paper

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth.dev/berth/test/images/recipe"
)

// refName is the annotation with an image's name in the index of a layout.
const refName = "org.opencontainers.image.ref.name"

// layout is a folder where an OCI layout is being written.
type layout struct {
	dir   string
	index v1.IndexManifest
}

// blob is a layer: its descriptor in the folder, and its uncompressed digest.
type blob struct {
	v1.Descriptor
	diff v1.Hash
}

func newLayout(dir string) (*layout, error) {
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return nil, fmt.Errorf("make a folder for images: %w", err)
	}
	return &layout{dir, v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}}, nil
}

func (l *layout) path(digest v1.Hash) string {
	return filepath.Join(l.dir, "blobs", "sha256", digest.Hex)
}

// layer writes a layer, compressed as docker does.
func (l *layout) layer(entries []recipe.Entry) (b blob, err error) {
	file, err := os.CreateTemp(l.dir, ".layer-*")
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	whole, packed, size := sha256.New(), sha256.New(), &count{}
	zipped := gzip.NewWriter(io.MultiWriter(file, packed, size))
	if err := errors.Join(recipe.WriteLayer(io.MultiWriter(zipped, whole), entries), zipped.Close()); err != nil {
		return b, fmt.Errorf("write a layer: %w", err)
	}
	b.diff = v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", whole.Sum(nil))}
	b.Descriptor = v1.Descriptor{MediaType: types.OCILayer, Size: size.bytes, Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", packed.Sum(nil))}}
	return b, errors.Join(file.Chmod(0o644), os.Rename(file.Name(), l.path(b.Digest)))
}

type count struct{ bytes int64 }

func (c *count) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

// image writes the configuration and manifest of an image, under a name.
func (l *layout) image(name, module string, layers []blob) error {
	config := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env: []string{
				"PATH=/usr/local/bin:/usr/bin:/bin", "MODULE=" + module,
				// Debian's alternatives are links that maintainer scripts make, which do not run here.
				"LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack:/usr/lib/aarch64-linux-gnu/blas:/usr/lib/aarch64-linux-gnu/lapack",
			},
			Cmd: []string{"python3"},
		},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, layer := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.diff)
		manifest.Layers = append(manifest.Layers, layer.Descriptor)
	}
	var err error
	if manifest.Config, err = l.encoded(config, types.OCIConfigJSON); err != nil {
		return err
	}
	descriptor, err := l.encoded(manifest, types.OCIManifestSchema1)
	if err != nil {
		return err
	}
	descriptor.Annotations = map[string]string{refName: name}
	l.index.Manifests = append(l.index.Manifests, descriptor)
	return nil
}

func (l *layout) encoded(v any, kind types.MediaType) (v1.Descriptor, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: kind, Size: size, Digest: digest}, os.WriteFile(l.path(digest), content, 0o644)
}

// converted adds the result of converting one of the images, under a new
// name.
func (l *layout) converted(from, to string, convert func(layout, archive string) error) (err error) {
	scratch, err := os.MkdirTemp(l.dir, ".convert-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	alone, err := newLayout(filepath.Join(scratch, "layout"))
	if err != nil {
		return err
	}
	for _, d := range l.index.Manifests {
		if d.Annotations[refName] != from {
			continue
		}
		content, err := os.ReadFile(l.path(d.Digest))
		if err != nil {
			return err
		}
		var manifest v1.Manifest
		if err := json.Unmarshal(content, &manifest); err != nil {
			return err
		}
		for _, part := range append(manifest.Layers, manifest.Config, d) {
			if err := os.Link(l.path(part.Digest), alone.path(part.Digest)); err != nil {
				return err
			}
		}
		d.Annotations = map[string]string{refName: "1", "io.containerd.image.name": "docker.io/library/" + from}
		alone.index.Manifests = append(alone.index.Manifests, d)
	}
	if err := alone.close(); err != nil {
		return err
	}
	archive := filepath.Join(scratch, "converted.tar")
	if err := convert(alone.dir, archive); err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	return l.add(archive, to)
}

// add adds the first image of an archive with an OCI layout.
func (l *layout) add(archive, name string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	var index v1.IndexManifest
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		if hex, is := strings.CutPrefix(header.Name, "blobs/sha256/"); is && hex != "" {
			if err := copyTo(l.path(v1.Hash{Hex: filepath.Base(hex)}), r); err != nil {
				return err
			}
		}
		if header.Name == "index.json" {
			if err := json.NewDecoder(r).Decode(&index); err != nil {
				return fmt.Errorf("read the index of %s: %w", archive, err)
			}
		}
	}
	if len(index.Manifests) == 0 {
		return fmt.Errorf("there is no image in %s", archive)
	}
	first := index.Manifests[0]
	first.Annotations = map[string]string{refName: name}
	l.index.Manifests = append(l.index.Manifests, first)
	return nil
}

func copyTo(path string, from io.Reader) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}

// close writes the files that make the folder an OCI layout.
func (l *layout) close() error {
	index, err := json.Marshal(l.index)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(l.dir, "index.json"), index, 0o644),
		os.WriteFile(filepath.Join(l.dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644),
	)
}
