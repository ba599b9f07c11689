package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/transfer"
	transferregistry "github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// naming is a registry whose errors name the blob that they are about. containerd's errors
// name only the image.
type naming struct{ *transferregistry.OCIRegistry }

// Fetcher returns a fetcher for the blobs of an image.
func (n naming) Fetcher(ctx context.Context, ref string) (transfer.Fetcher, error) {
	inner, err := n.OCIRegistry.Fetcher(ctx, ref)
	return namingFetcher{inner}, err
}

type namingFetcher struct{ transfer.Fetcher }

func (n namingFetcher) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	content, err := n.Fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, named(desc, err)
	}
	return &namingReader{ReadCloser: content, desc: desc}, nil
}

// named adds the blob to an error.
func named(desc ocispec.Descriptor, err error) error {
	kind := "blob"
	switch {
	case images.IsLayerType(desc.MediaType):
		kind = "layer"
	case images.IsConfigType(desc.MediaType):
		kind = "configuration"
	case images.IsManifestType(desc.MediaType), images.IsIndexType(desc.MediaType):
		kind = "manifest"
	}
	return fmt.Errorf("fetch %s %s: %w", kind, desc.Digest, err)
}

// namingReader reads a blob.
type namingReader struct {
	io.ReadCloser
	desc ocispec.Descriptor
	at   int64
}

// Read returns an error instead of io.EOF if the blob ends before its stated size.
func (r *namingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.at += int64(n)
	switch {
	case err == nil, errors.Is(err, io.EOF) && r.at >= r.desc.Size:
		return n, err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%d of %d bytes came: %w", r.at, r.desc.Size, io.ErrUnexpectedEOF)
	}
	return n, named(r.desc, err)
}

// Seek continues at another offset. containerd calls it for a blob that was fetched in part.
func (r *namingReader) Seek(offset int64, whence int) (int64, error) {
	seeker, ok := r.ReadCloser.(io.Seeker)
	if !ok {
		return 0, named(r.desc, fmt.Errorf("continue at byte %d: %w", offset, errdefs.ErrNotImplemented))
	}
	at, err := seeker.Seek(offset, whence)
	if err != nil {
		return at, named(r.desc, err)
	}
	r.at = at
	return at, nil
}
