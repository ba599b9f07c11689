package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

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

// small is the size in bytes below which Writer does not check the space for a blob.
const small = 16 << 20

// Writer opens a blob for writing. It refuses a blob whose stated size does not fit, before
// a registry sends it: clients of containerd try again and again.
func (s sparing) Writer(ctx context.Context, options ...content.WriterOpt) (content.Writer, error) {
	var wanted content.WriterOpts
	for _, option := range options {
		if err := option(&wanted); err != nil {
			return nil, err
		}
	}
	w, err := s.localStore.Writer(ctx, options...)
	if err != nil {
		return nil, err
	}
	status, err := w.Status()
	if rest := wanted.Desc.Size - status.Offset; err == nil && rest >= small {
		err = s.space.Room(rest)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store blob %s: %w", named(wanted), err), w.Close())
	}
	return sparingWriter{w, s.space.Packed().Writer(w), named(wanted)}, nil
}

type sparingWriter struct {
	content.Writer
	guarded io.Writer
	blob    string
}

// named returns a name of the blob for errors. containerd's metadata store omits the digest,
// but the reference is NAMESPACE/NUMBER/layer-DIGEST.
func named(wanted content.WriterOpts) string {
	if wanted.Desc.Digest != "" {
		return wanted.Desc.Digest.String()
	}
	return path.Base(wanted.Ref)
}

// Write writes content. If too little space would be left, it also frees what it has
// written. This happens if other data took the space meanwhile, or if the blob is larger
// than stated. If the part stayed, it would block that space until its lease ends, although
// Writer would refuse to continue the blob. Freeing it costs one more download, which begins
// only when there is room for the whole blob.
func (w sparingWriter) Write(p []byte) (int, error) {
	n, err := w.guarded.Write(p)
	if errors.Is(err, freespace.ErrNoSpace) {
		err = errors.Join(fmt.Errorf("store blob %s: %w", w.blob, err), w.Truncate(0))
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
