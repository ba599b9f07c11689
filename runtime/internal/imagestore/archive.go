package imagestore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
)

// Archive is a file with images, and a name for its only image. Without a name,
// the name in the archive is used, and then the name of the file.
type Archive struct {
	Name, Path string
	// Budget bounds what the images may contain.
	Budget budget.Budget
}

// ParseArchive reads "FILE" or "NAME=FILE". A FILE with an equals sign in its name
// is recognized if it exists.
func ParseArchive(arg string) (Archive, error) {
	if _, err := os.Stat(arg); err == nil {
		return Archive{Path: arg}, nil
	}
	name, path, ok := strings.Cut(arg, "=")
	if !ok {
		return Archive{Path: arg}, nil
	}
	full, err := normalize(name)
	if err != nil {
		return Archive{}, fmt.Errorf("parse image name in %q: %w", arg, err)
	}
	return Archive{Name: full, Path: path}, nil
}

// normalize returns the name that the kubelet requests: busybox becomes
// docker.io/library/busybox:latest.
func normalize(name string) (string, error) {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", err
	}
	return ref.String(), nil
}

// imageName returns the name of an image with annotations. named reports whether the caller
// or an annotation names the image; otherwise it is named after the file.
func (a Archive) imageName(annotations map[string]string) (name string, named bool, err error) {
	if a.Name != "" {
		return a.Name, true, nil
	}
	own := annotations[images.AnnotationImageName]
	if own == "" {
		own = annotations[ocispec.AnnotationRefName]
	}
	if strings.ContainsAny(own, ":/") {
		name, err := normalize(own)
		if err != nil {
			return "", false, fmt.Errorf("parse image name %q of the archive (give one: --image NAME=%s): %w", own, a.Path, err)
		}
		return name, true, nil
	}
	// An OCI layout often knows only the tag.
	base := a.baseName()
	if own != "" {
		base += ":" + own
	}
	if name, err = normalize(base); err != nil {
		return "", false, fmt.Errorf("the archive names no image and its own name makes none (give one: --image NAME=%s): %w", a.Path, err)
	}
	return name, own != "", nil
}

// baseName returns the name of a file without the extensions of packing.
func (a Archive) baseName() string {
	base := strings.ToLower(filepath.Base(a.Path))
	for _, suffix := range []string{".gz", ".zst", ".zstd", ".tgz", ".tar", ".oci", ".docker", ".sif"} {
		base = strings.TrimSuffix(base, suffix)
	}
	return base
}

// The first bytes of data that gzip and zstd have compressed.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// windowed is a reader of zstd. Its error for a large window names the limit.
type windowed struct {
	io.ReadCloser
	most *budget.Layer
}

func (w windowed) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = w.most.ExceededWindow()
	}
	return n, err
}

// Decompress returns a reader of unpacked data. It recognizes gzip and zstd by their first
// bytes, and returns other data as they are. Unlike containerd's own readers it starts no
// program. The unpacked bytes count against the limits of most.
func Decompress(packed io.Reader, most *budget.Layer) (io.ReadCloser, error) {
	unpacked, err := decompress(packed, most)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{most.Reader(unpacked), unpacked}, nil
}

func decompress(packed io.Reader, most *budget.Layer) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(packed, 1<<20)
	magic, err := buffered.Peek(4)
	if err != nil && len(magic) == 0 {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("it is empty: %w", err)
		}
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		return gzip.NewReader(buffered)
	case bytes.Equal(magic, zstdMagic):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(uint64(most.Window())))
		if err != nil {
			return nil, err
		}
		return windowed{z.IOReadCloser(), most}, nil
	default:
		return io.NopCloser(buffered), nil
	}
}
