package peers

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"

	"berth.dev/berth/runtime/internal/freespace"
)

// sparing is containerd's own store. It leaves a part of its file system free: a registry
// may send as many bytes as an image's manifest states, and the pods of the node write to
// the same file system.
type sparing struct {
	localStore
	space *freespace.Guard
}

// NewLocal returns containerd's own store of blobs in a directory.
func NewLocal(root string) (content.Store, error) { return newLocal(root) }

func newLocal(root string) (localStore, error) {
	store, err := local.NewStore(root)
	if err != nil {
		return nil, err
	}
	s, ok := store.(localStore)
	if !ok {
		return nil, fmt.Errorf("open store of blobs: %T does not list transfers", store)
	}
	space, err := freespace.Watch(root)
	if err != nil {
		return nil, fmt.Errorf("open store of blobs: %w", err)
	}
	return sparing{s, space}, nil
}

// Writer opens a blob for writing.
func (s sparing) Writer(ctx context.Context, options ...content.WriterOpt) (content.Writer, error) {
	w, err := s.localStore.Writer(ctx, options...)
	if err != nil {
		return nil, err
	}
	return sparingWriter{w, s.space.Packed().Writer(w)}, nil
}

type sparingWriter struct {
	content.Writer
	guarded io.Writer
}

// Write writes content. If too little space would be left, it also frees what it has
// written: nobody would continue from there soon.
func (w sparingWriter) Write(p []byte) (int, error) {
	n, err := w.guarded.Write(p)
	if errors.Is(err, freespace.ErrNoSpace) {
		err = errors.Join(err, w.Truncate(0))
	}
	return n, err
}

// Sync writes the blob to disk.
func (w sparingWriter) Sync() error {
	if s, ok := w.Writer.(content.Syncer); ok {
		return s.Sync()
	}
	return nil
}
