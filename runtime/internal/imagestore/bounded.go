package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
)

// Texts is a store of manifests and configurations, which are read into memory as
// a whole. It refuses blobs beyond the limits of most.
type Texts struct {
	content.Provider
	Most *budget.Layer
}

// ReaderAt reads a blob into memory.
func (t Texts) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	blob, err := t.Provider.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	var text []byte
	if err = t.Most.CheckTextSize(blob.Size()); err == nil {
		text, err = io.ReadAll(content.NewReader(blob))
	}
	if err == nil {
		err = t.Most.Text(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", desc.Digest, err)
	}
	return section{io.NewSectionReader(bytes.NewReader(text), 0, int64(len(text)))}, nil
}

// boundedStore bounds the configurations that containerd reads while it imports an
// archive.
type boundedStore struct {
	content.Store
	most *budget.Layer
}

func (s boundedStore) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if images.IsConfigType(desc.MediaType) || images.IsManifestType(desc.MediaType) || images.IsIndexType(desc.MediaType) {
		return Texts{s.Store, s.most}.ReaderAt(ctx, desc)
	}
	return s.Store.ReaderAt(ctx, desc)
}

// bounded returns an archive of the files and symbolic links of an archive. Reading it fails
// when the archive exceeds the limits of most, because containerd would keep any number of
// names, and decode texts of any number of values.
func bounded(from io.Reader, most *budget.Layer) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(copyBounded(writer, from, most)) }()
	return reader
}

func copyBounded(to io.Writer, from io.Reader, most *budget.Layer) error {
	in, out := tar.NewReader(most.Archive(from)), tar.NewWriter(to)
	for {
		header, err := budget.Next(in)
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err == nil {
			err = most.Entry(header)
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg && header.Typeflag != tar.TypeSymlink {
			continue
		}
		var content io.Reader = in
		if name := path.Clean(header.Name); name == ocispec.ImageLayoutFile || name == savedManifest {
			var text []byte
			if err := most.CheckTextSize(header.Size); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if text, err = io.ReadAll(in); err == nil {
				err = most.Text(text)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			content = bytes.NewReader(text)
		}
		err = out.WriteHeader(&tar.Header{Typeflag: header.Typeflag, Name: header.Name, Linkname: header.Linkname, Size: header.Size, Format: tar.FormatPAX})
		if err == nil {
			_, err = io.Copy(out, content)
		}
		if err != nil {
			return err
		}
	}
}
