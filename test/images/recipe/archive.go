package recipe

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tagLabel makes the configuration of every tag its own. A CRI image is known
// by the digest of its configuration, so two tags with one configuration would
// be one image: removing or pinning the one would touch the other.
const tagLabel = "org.opencontainers.image.ref.name"

// Images builds the recipe's image once per tag, for GOARCH arch. The layers'
// files are kept in scratch until the images have been written.
func (r Recipe) Images(arch, scratch string) (map[string]v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for i, entries := range r.Layers {
		if len(entries) == 0 {
			continue
		}
		layer, err := r.layer(entries, filepath.Join(scratch, fmt.Sprintf("layer-%d.tar", i)))
		if err != nil {
			return nil, fmt.Errorf("build layer %d: %w", i, err)
		}
		base, err = mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{
			CreatedBy: fmt.Sprintf("recipe, layer %d", i), Created: v1.Time{Time: epoch()},
		}})
		if err != nil {
			return nil, fmt.Errorf("append layer %d: %w", i, err)
		}
	}
	config, err := base.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	images := make(map[string]v1.Image, len(r.Tags))
	for _, tag := range r.Tags {
		c := config.DeepCopy()
		c.Architecture, c.OS, c.Created = arch, "linux", v1.Time{Time: epoch()}
		c.Config = *r.Config.DeepCopy()
		if c.Config.Labels == nil {
			c.Config.Labels = map[string]string{}
		}
		c.Config.Labels[tagLabel] = tag
		if images[tag], err = mutate.ConfigFile(base, c); err != nil {
			return nil, fmt.Errorf("set config of %s: %w", tag, err)
		}
	}
	return images, nil
}

func (r Recipe) layer(entries []Entry, file string) (v1.Layer, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	err = errors.Join(WriteLayer(f, entries), f.Close())
	if err != nil {
		return nil, err
	}
	options := map[string][]tarball.LayerOption{
		"gzip": {tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed)},
		"zstd": {tarball.WithMediaType(types.OCILayerZStd), tarball.WithCompression(compression.ZStd)},
		"none": {tarball.WithMediaType(types.OCIUncompressedLayer), tarball.WithCompression(compression.None)},
	}
	return tarball.LayerFromFile(file, options[r.Compression]...)
}

// WriteOCI writes an OCI image layout as one tar file, as
// "skopeo copy oci-archive:", "docker save" and "ctr export" make it.
func (r Recipe) WriteOCI(w io.Writer, images map[string]v1.Image) error {
	a := newArchive(w)
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	a.add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	for _, tag := range r.Tags {
		parts, err := take(images[tag])
		if err != nil {
			return fmt.Errorf("write %s: %w", tag, err)
		}
		for _, content := range append(parts.layers, parts.config, parts.manifest) {
			a.add("blobs/sha256/"+hexDigest(content), content)
		}
		c, err := images[tag].ConfigFile()
		if err != nil {
			return fmt.Errorf("write %s: %w", tag, err)
		}
		index.Manifests = append(index.Manifests, v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Size: int64(len(parts.manifest)),
			Digest:   v1.Hash{Algorithm: "sha256", Hex: hexDigest(parts.manifest)},
			Platform: &v1.Platform{OS: c.OS, Architecture: c.Architecture},
			Annotations: map[string]string{
				"io.containerd.image.name": tag,
				tagLabel:                   tag[strings.LastIndex(tag, ":")+1:],
			},
		})
	}
	a.addJSON("index.json", index)
	return a.close()
}

// WriteDocker writes the older format of "docker save", with a manifest.json
// and no OCI layout.
func (r Recipe) WriteDocker(w io.Writer, images map[string]v1.Image) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	a := newArchive(w)
	var manifest []entry
	for _, tag := range r.Tags {
		parts, err := take(images[tag])
		if err != nil {
			return fmt.Errorf("write %s: %w", tag, err)
		}
		e := entry{Config: hexDigest(parts.config) + ".json", RepoTags: []string{tag}}
		a.add(e.Config, parts.config)
		for _, content := range parts.layers {
			file := hexDigest(content) + ".tar.gz"
			a.add(file, content)
			e.Layers = append(e.Layers, file)
		}
		manifest = append(manifest, e)
	}
	a.addJSON("manifest.json", manifest)
	return a.close()
}

// parts are the bytes of an image. The images of tests are small enough to be
// held in memory.
type parts struct {
	layers           [][]byte
	config, manifest []byte
}

func take(img v1.Image) (p parts, err error) {
	layers, err := img.Layers()
	if err != nil {
		return p, err
	}
	for _, layer := range layers {
		in, err := layer.Compressed()
		if err != nil {
			return p, err
		}
		content, err := io.ReadAll(in)
		if err := errors.Join(err, in.Close()); err != nil {
			return p, err
		}
		p.layers = append(p.layers, content)
	}
	if p.config, err = img.RawConfigFile(); err != nil {
		return p, err
	}
	p.manifest, err = img.RawManifest()
	return p, err
}

func hexDigest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// archive is a tar file that gets each entry only once. It keeps its first
// error until the end.
type archive struct {
	tar  *tar.Writer
	seen map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive {
	return &archive{tar: tar.NewWriter(w), seen: map[string]bool{}}
}

func (a *archive) add(name string, content []byte) {
	if a.err != nil || a.seen[name] {
		return
	}
	a.seen[name] = true
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644, ModTime: epoch()}
	if a.err = a.tar.WriteHeader(h); a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

func (a *archive) addJSON(name string, v any) {
	content, err := json.Marshal(v)
	a.err = errors.Join(a.err, err)
	a.add(name, content)
}

func (a *archive) close() error {
	if err := errors.Join(a.err, a.tar.Close()); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}
