package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/budget"
)

// Lying gives access to blobs in place. Their digests are not checked yet.
type Lying interface {
	content.Provider
	io.Closer
	// Part returns the place of a blob. The error wraps errdefs.ErrNotFound for a blob
	// that does not exist or has no separate file.
	Part(blob digest.Digest) (archived.Part, error)
}

// OpenInPlace opens a folder with an OCI layout, or an archive whose blobs can
// be read one by one, and returns the index of its images. It returns nil for
// archives that only ReadArchive can read or diagnose.
func OpenInPlace(ctx context.Context, a Archive) (Lying, ocispec.Index, error) {
	info, err := os.Stat(a.Path)
	switch {
	case err != nil:
		return nil, ocispec.Index{}, fmt.Errorf("open image archive: %w", err)
	case info.IsDir():
		index, err := readLayout(ctx, a.Path, a.Budget)
		return layout(a.Path), index, err
	case !info.Mode().IsRegular():
		return nil, ocispec.Index{}, nil // a pipe can be read only once
	}
	plain, index, err := openPlain(ctx, a)
	if plain == nil {
		return nil, index, err
	}
	return plain, index, err
}

// layout is a folder with an OCI layout. Its blobs may be links, because tools that store
// each blob only once make such folders. The reader of a blob checks its digest.
type layout string

// isLayout reports whether a folder contains an OCI layout instead of an unpacked image.
func isLayout(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, ocispec.ImageLayoutFile))
	return err == nil && info.Mode().IsRegular()
}

func readLayout(ctx context.Context, dir string, b budget.Budget) (index ocispec.Index, err error) {
	text, err := readText(ctx, filepath.Join(dir, ocispec.ImageIndexFile), b)
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil {
		return index, fmt.Errorf("read folder %s as an OCI layout: %w", dir, err)
	}
	return index, nil
}

func readText(ctx context.Context, path string, b budget.Budget) ([]byte, error) {
	all, err := archived.Whole(path)
	if err != nil {
		return nil, err
	}
	if err := b.CheckTextSize(all.Size); err != nil {
		return nil, err
	}
	file, err := all.ReaderAt(ctx, ocispec.Descriptor{})
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(content.NewReader(file))
	if err == nil {
		err = b.CheckText(text)
	}
	return text, err
}

// Part returns the whole file of a blob.
func (l layout) Part(blob digest.Digest) (archived.Part, error) {
	if err := blob.Validate(); err != nil {
		return archived.Part{}, fmt.Errorf("read blob: %w", err)
	}
	at, err := archived.Whole(filepath.Join(string(l), ocispec.ImageBlobsDir, blob.Algorithm().String(), blob.Encoded()))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return archived.Part{}, fmt.Errorf("read blob %s: %w", blob, err)
	}
	return at, nil
}

// ReaderAt opens a blob's file.
func (l layout) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	at, err := l.Part(desc.Digest)
	if err != nil {
		return nil, err
	}
	blob, err := at.ReaderAt(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", desc.Digest, err)
	}
	return blob, nil
}

// Close does nothing.
func (l layout) Close() error { return nil }
