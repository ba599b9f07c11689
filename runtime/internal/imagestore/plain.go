package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/budget"
)

// plain is an archive that is not compressed as a whole, so that its blobs can be
// read in place. It takes the digest of a blob from its name or, for layers of
// docker save, from the configuration. The reader of a blob checks the digest.
type plain struct {
	io.Closer
	path string
	from source
	most *budget.Layer
	// blobs holds the blobs of layouts by digest, and the layers of docker save.
	blobs map[digest.Digest]part
	// texts holds blobs that are not in the archive, or not under their digest.
	texts map[digest.Digest][]byte
}

// source is the file of an archive.
type source interface {
	io.ReadSeeker
	io.ReaderAt
}

// part is the place of a file in an archive.
type part struct{ offset, size int64 }

// savedManifest is the file of an archive of docker save that lists its images.
const savedManifest = "manifest.json"

// errOtherForm is the error for archives that must be read from beginning to end.
var errOtherForm = errors.New("its blobs cannot be read one by one")

// openPlain opens an archive and reads its index. It returns nil without an error if the
// archive must be read in another way, see errOtherForm.
func openPlain(ctx context.Context, a Archive) (*plain, ocispec.Index, error) {
	file, err := os.Open(a.Path)
	if err != nil {
		return nil, ocispec.Index{}, fmt.Errorf("open image archive: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, ocispec.Index{}, errors.Join(fmt.Errorf("open image archive: %w", err), file.Close())
	}
	p := newPlain(file, a.Budget.Layer(info.Size()))
	p.Closer, p.path = file, a.Path
	index, err := p.index(ctx)
	if errors.Is(err, budget.ErrExceeded) {
		return nil, ocispec.Index{}, errors.Join(fmt.Errorf("read image archive %s: %w", a.Path, err), file.Close())
	}
	if err != nil {
		return nil, ocispec.Index{}, file.Close()
	}
	return p, index, nil
}

func newPlain(from source, most *budget.Layer) *plain {
	return &plain{from: from, most: most, blobs: map[digest.Digest]part{}, texts: map[digest.Digest][]byte{}}
}

func (p *plain) index(ctx context.Context) (index ocispec.Index, err error) {
	parts, err := listParts(p.from, p.most)
	if err != nil {
		return index, err
	}
	if _, is := parts[ocispec.ImageLayoutFile]; is {
		return p.layout(parts)
	}
	return p.saved(ctx, parts)
}

// listParts reads the headers of an archive's files, and no content.
func listParts(file io.ReadSeeker, most *budget.Layer) (map[string]part, error) {
	end, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	parts, links := map[string]part{}, map[string]string{}
	// The reader does not read ahead, so the file's offset is the start of the
	// content.
	for archive := tar.NewReader(file); ; {
		header, err := budget.Next(archive)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := most.Entry(header); err != nil {
			return nil, err
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeSymlink:
			links[name] = path.Join(path.Dir(name), header.Linkname)
		case tar.TypeReg:
			offset, err := file.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			for key := range header.PAXRecords {
				if strings.HasPrefix(key, "GNU.sparse.") {
					return nil, errOtherForm // the archive omits the holes of its content
				}
			}
			if header.Size > end-offset {
				return nil, io.ErrUnexpectedEOF
			}
			parts[name] = part{offset, header.Size}
		}
	}
	for name, target := range links {
		if found, ok := parts[target]; ok {
			parts[name] = found
		}
	}
	return parts, nil
}

// layout reads the index of an OCI layout.
func (p *plain) layout(parts map[string]part) (index ocispec.Index, err error) {
	var layout ocispec.ImageLayout
	if err := p.parse(parts, ocispec.ImageLayoutFile, &layout); err != nil {
		return index, err
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return index, errOtherForm
	}
	for name, part := range parts {
		if dir, encoded := path.Split(name); dir == ocispec.ImageBlobsDir+"/sha256/" {
			if d := digest.NewDigestFromEncoded(digest.SHA256, encoded); d.Validate() == nil {
				p.blobs[d] = part
			}
		}
	}
	return index, p.parse(parts, ocispec.ImageIndexFile, &index)
}

// saved makes an index of an archive of docker save.
func (p *plain) saved(ctx context.Context, parts map[string]part) (index ocispec.Index, err error) {
	var saved []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := p.parse(parts, savedManifest, &saved); err != nil {
		return index, err
	}
	for _, image := range saved {
		desc, err := p.savedImage(ctx, parts, image.Config, image.Layers)
		if err != nil {
			return index, err
		}
		if len(image.RepoTags) == 0 {
			index.Manifests = append(index.Manifests, desc)
		}
		for _, tag := range image.RepoTags {
			name, err := normalize(tag)
			if err != nil {
				return index, err
			}
			desc.Annotations = map[string]string{images.AnnotationImageName: name}
			index.Manifests = append(index.Manifests, desc)
		}
	}
	return index, nil
}

// savedImage makes the same manifest as containerd does for such an image, so that
// the digest is the same.
func (p *plain) savedImage(ctx context.Context, parts map[string]part, configName string, layers []string) (desc ocispec.Descriptor, err error) {
	text, err := p.text(parts, configName)
	if err != nil {
		return desc, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(text, &config); err != nil {
		return desc, err
	}
	if err := p.most.CheckLayers(len(layers)); err != nil {
		return desc, err
	}
	if len(config.RootFS.DiffIDs) != len(layers) {
		return desc, errOtherForm
	}
	manifest := struct {
		specs.Versioned
		MediaType string               `json:"mediaType"`
		Config    ocispec.Descriptor   `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: images.MediaTypeDockerSchema2Manifest,
		Config: p.keep(images.MediaTypeDockerSchema2Config, text), Layers: make([]ocispec.Descriptor, len(layers)),
	}
	for i, name := range layers {
		id := config.RootFS.DiffIDs[i]
		part, found := parts[path.Clean(name)]
		// The uncompressed digest says nothing about a compressed layer.
		if !found || id.Validate() != nil || id.Algorithm() != digest.SHA256 || p.compressed(part) {
			return desc, errOtherForm
		}
		p.blobs[id] = part
		manifest.Layers[i] = ocispec.Descriptor{MediaType: images.MediaTypeDockerSchema2Layer, Digest: id, Size: part.size}
	}
	if text, err = json.Marshal(manifest); err != nil {
		return desc, err
	}
	desc = p.keep(images.MediaTypeDockerSchema2Manifest, text)
	own, err := images.Platforms(ctx, p, desc)
	if len(own) > 0 {
		desc.Platform = &own[0]
	}
	return desc, err
}

// compressed reports whether Decompress would unpack a part.
func (p *plain) compressed(at part) bool {
	magic := make([]byte, min(at.size, int64(len(zstdMagic))))
	_, err := p.from.ReadAt(magic, at.offset)
	return err != nil || bytes.HasPrefix(magic, gzipMagic) || bytes.HasPrefix(magic, zstdMagic)
}

// keep keeps a text that is not in the archive under its digest.
func (p *plain) keep(mediaType string, text []byte) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
	p.texts[desc.Digest] = text
	return desc
}

func (p *plain) text(parts map[string]part, name string) ([]byte, error) {
	part, found := parts[path.Clean(name)]
	if !found {
		return nil, errOtherForm
	}
	if err := p.most.CheckTextSize(part.size); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	text := make([]byte, part.size)
	if _, err := p.from.ReadAt(text, part.offset); err != nil {
		return nil, err
	}
	if err := p.most.Text(text); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

func (p *plain) parse(parts map[string]part, name string, value any) error {
	text, err := p.text(parts, name)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

// ReaderAt opens a blob in place.
func (p *plain) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if text, found := p.texts[desc.Digest]; found {
		return section{io.NewSectionReader(bytes.NewReader(text), 0, int64(len(text)))}, nil
	}
	part, found := p.blobs[desc.Digest]
	if !found {
		return nil, fmt.Errorf("read blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return section{io.NewSectionReader(p.from, part.offset, part.size)}, nil
}

// section is a blob within an open file.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// Part returns the place of a blob.
func (p *plain) Part(blob digest.Digest) (archived.Part, error) {
	at, found := p.blobs[blob]
	if !found {
		return archived.Part{}, fmt.Errorf("read blob %s: %w", blob, errdefs.ErrNotFound)
	}
	return archived.Part{Path: p.path, Offset: at.offset, Size: at.size}, nil
}
