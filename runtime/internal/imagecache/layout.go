package imagecache

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archiveWriter writes an OCI layout as a tar archive. A blob's header contains the digest
// and size of the blob, so it is written after the blob. Thus nothing is written twice, and
// no temporary file is needed.
type archiveWriter struct {
	file  *os.File
	end   int64
	index ocispec.Index
	// docker lists the images for versions of 'docker load' that cannot read layouts.
	docker []dockerManifest
}

type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// block is the unit of tar archives.
const block = 512

func newArchiveWriter(file *os.File) *archiveWriter {
	return &archiveWriter{file: file, index: ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}}
}

func blobName(d digest.Digest) string {
	return filepath.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// blob adds the data that write writes, and names it after its digest.
func (a *archiveWriter) blob(write func(io.Writer) error) (ocispec.Descriptor, error) {
	return a.add("", write)
}

func (a *archiveWriter) add(name string, write func(io.Writer) error) (desc ocispec.Descriptor, err error) {
	if _, err := a.file.Seek(a.end+block, io.SeekStart); err != nil {
		return desc, err
	}
	h := sha256.New()
	buffered := bufio.NewWriterSize(a.file, 1<<20)
	if err := write(countedWriter{io.MultiWriter(buffered, h), func(n int) { desc.Size += int64(n) }}); err != nil {
		// The packer may have dropped the disk's error.
		if full := buffered.Flush(); full != nil {
			err = full
		}
		return desc, err
	}
	desc.Digest = digest.NewDigest(digest.SHA256, h)
	if name == "" {
		name = blobName(desc.Digest)
	}
	padding := -desc.Size & (block - 1)
	if _, err := buffered.Write(make([]byte, padding)); err != nil {
		return desc, err
	}
	if err := buffered.Flush(); err != nil {
		return desc, err
	}
	// In this format a header is one block, even for files above 8 GiB.
	var header bytes.Buffer
	if err := tar.NewWriter(&header).WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: desc.Size, Format: tar.FormatGNU}); err != nil {
		return desc, err
	}
	if header.Len() != block {
		return desc, fmt.Errorf("the header of %s has %d bytes", name, header.Len())
	}
	if _, err := a.file.WriteAt(header.Bytes(), a.end); err != nil {
		return desc, err
	}
	a.end += block + desc.Size + padding
	return desc, nil
}

func (a *archiveWriter) text(name string, text []byte) (ocispec.Descriptor, error) {
	return a.add(name, func(to io.Writer) error {
		_, err := to.Write(text)
		return err
	})
}

func (a *archiveWriter) json(name string, value any) (ocispec.Descriptor, error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return a.text(name, encoded)
}

// image adds an image whose layers have been added.
func (a *archiveWriter) image(name string, config []byte, layers []ocispec.Descriptor) (digest.Digest, error) {
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Layers: layers}
	var err error
	if manifest.Config, err = a.text("", config); err != nil {
		return "", err
	}
	manifest.Config.MediaType = ocispec.MediaTypeImageConfig
	desc, err := a.json("", manifest)
	if err != nil {
		return "", err
	}
	var own struct{ ocispec.Platform }
	if err := json.Unmarshal(config, &own); err != nil {
		return "", err
	}
	desc.MediaType, desc.Platform = ocispec.MediaTypeImageManifest, &own.Platform
	desc.Annotations = map[string]string{images.AnnotationImageName: name, ocispec.AnnotationRefName: name}
	a.index.Manifests = append(a.index.Manifests, desc)
	docker := dockerManifest{Config: blobName(manifest.Config.Digest), RepoTags: []string{name}}
	for _, l := range layers {
		docker.Layers = append(docker.Layers, blobName(l.Digest))
	}
	a.docker = append(a.docker, docker)
	return desc.Digest, nil
}

// close adds the index of the images.
func (a *archiveWriter) close() error {
	if _, err := a.json(ocispec.ImageIndexFile, a.index); err != nil {
		return err
	}
	if _, err := a.json(ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}); err != nil {
		return err
	}
	if _, err := a.json("manifest.json", a.docker); err != nil {
		return err
	}
	_, err := a.file.WriteAt(make([]byte, 2*block), a.end)
	return err
}
