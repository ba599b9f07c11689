package imagestore

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// texts is a store of manifests and configurations, which are read into memory as
// a whole. It refuses larger blobs.
type texts struct{ content.Store }

func (t texts) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	blob, err := t.Store.ReaderAt(ctx, desc)
	if err == nil && blob.Size() > maxText {
		blob.Close()
		return nil, fmt.Errorf("read blob %s: it has %d bytes, and a manifest or configuration has at most %d", desc.Digest, blob.Size(), maxText)
	}
	return blob, err
}

// maxHeaders bounds the bytes of an archive that belong to no blob: names of files
// and links, which are kept in memory. An archive of a hundred thousand
// blobs has that many.
const maxHeaders = 64 << 20

// meteredStore bounds how much of an archive is not stored.
type meteredStore struct {
	content.Store
	// read and stored count bytes.
	read, stored atomic.Int64
}

// Writer starts a blob whose bytes are counted.
func (s *meteredStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return meteredWriter{w, s}, nil
}

type meteredWriter struct {
	content.Writer
	store *meteredStore
}

func (w meteredWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.store.stored.Add(int64(n))
	return n, err
}

// reader returns the reader of the archive.
func (s *meteredStore) reader(from io.Reader) io.Reader { return meteredReader{from, s} }

type meteredReader struct {
	io.Reader
	store *meteredStore
}

func (r meteredReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.store.read.Add(int64(n))-r.store.stored.Load() > maxHeaders {
		return 0, fmt.Errorf("it has more than %d bytes of names of files", maxHeaders)
	}
	return n, err
}
