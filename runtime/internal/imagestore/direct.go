package imagestore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// direct is containerd's content store, but this process writes blobs into the store's
// directory, and only registers them through containerd. containerd's own client would
// send them through a socket, hash them twice and wait for the disk twice for each blob,
// although no data of a node outlives the node.
//
// A blob is hashed while it is written, so it always gets the name of its content.
type direct struct {
	content.Store
	root string
}

// newDirect returns a direct store with the content plugin's directory, or remote itself if
// this process cannot write to that directory.
func newDirect(remote content.Store, root string) content.Store {
	probe, err := os.CreateTemp(root, "berth-import-*")
	if err != nil {
		return remote
	}
	probe.Close()
	os.Remove(probe.Name())
	return direct{Store: remote, root: root}
}

func (d direct) path(dgst digest.Digest) string {
	return filepath.Join(d.root, "blobs", dgst.Algorithm().String(), dgst.Encoded())
}

// Writer starts a blob. Unlike containerd's store, it never resumes an earlier one.
func (d direct) Writer(_ context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	f, err := os.CreateTemp(d.root, "berth-import-*")
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", err)
	}
	return &writer{store: d, ref: o.Ref, total: o.Desc.Size, file: f, hash: sha256.New(), started: time.Now()}, nil
}

// ReaderAt opens a blob's file.
func (d direct) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	f, err := os.Open(d.path(desc.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read blob: %w", err)
	}
	return blobReader{f, info.Size()}, nil
}

type blobReader struct {
	*os.File
	size int64
}

func (r blobReader) Size() int64 { return r.size }

type writer struct {
	store   direct
	ref     string
	total   int64
	file    *os.File
	hash    hash.Hash
	written int64
	started time.Time
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.hash.Write(p[:n])
	w.written += int64(n)
	if err != nil {
		err = fmt.Errorf("write blob: %w", err)
	}
	return n, err
}

func (w *writer) Digest() digest.Digest { return digest.NewDigest(digest.SHA256, w.hash) }

func (w *writer) Status() (content.Status, error) {
	return content.Status{Ref: w.ref, Offset: w.written, Total: w.total, StartedAt: w.started, UpdatedAt: time.Now()}, nil
}

func (w *writer) Truncate(size int64) error {
	if size != 0 {
		return fmt.Errorf("truncate blob to %d: %w", size, errdefs.ErrNotImplemented)
	}
	if _, err := w.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("truncate blob: %w", err)
	}
	w.hash.Reset()
	w.written = 0
	return w.file.Truncate(0)
}

// Close gives up a blob that was not committed. It can be called twice.
func (w *writer) Close() error {
	if w.file == nil {
		return nil
	}
	name := w.file.Name()
	err := w.file.Close()
	w.file = nil
	return errors.Join(err, os.Remove(name))
}

// attempts bounds the attempts to put a blob in place. containerd's garbage collector may
// remove the file before the blob is registered.
const attempts = 5

// Commit moves the blob into the store and registers it.
func (w *writer) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	defer w.Close()
	dgst := w.Digest()
	if size != 0 && size != w.written {
		return fmt.Errorf("blob %s has %d bytes instead of %d: %w", dgst, w.written, size, errdefs.ErrFailedPrecondition)
	}
	if expected != "" && expected != dgst {
		return fmt.Errorf("blob is %s instead of %s: %w", dgst, expected, errdefs.ErrFailedPrecondition)
	}
	if err := w.file.Chmod(0o444); err != nil {
		return fmt.Errorf("store blob: %w", err)
	}
	path := w.store.path(dgst)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("store blob: %w", err)
	}
	for range attempts {
		if err := os.Link(w.file.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("store blob: %w", err)
		}
		err := w.register(ctx, dgst, opts)
		if errdefs.IsFailedPrecondition(err) {
			continue // the file was removed before the registration, so containerd waits for data
		}
		if err != nil && !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("register blob %s: %w", dgst, err)
		}
		// A registered blob is not removed, but the file may have been removed before.
		if _, statErr := os.Lstat(path); statErr == nil {
			return err
		}
	}
	return fmt.Errorf("store blob %s: its file was removed each time: %w", dgst, errdefs.ErrUnavailable)
}

// register makes a blob that is in place known to containerd. A writer for a digest that
// the store has needs no data.
func (w *writer) register(ctx context.Context, dgst digest.Digest, opts []content.Opt) error {
	desc := ocispec.Descriptor{Digest: dgst, Size: w.written}
	remote, err := w.store.Store.Writer(ctx, content.WithRef("berth-"+dgst.String()), content.WithDescriptor(desc))
	if err != nil {
		return err
	}
	defer remote.Close()
	return remote.Commit(ctx, w.written, dgst, opts...)
}
