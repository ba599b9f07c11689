// Package peers lets the nodes of a run take layers from each other, so that
// together they download each layer once from the registry. It wraps containerd's
// content store: when containerd begins to write a layer, the package first
// writes the bytes that other nodes have. containerd then requests the rest, if any,
// from the registry. So the package needs no registry's address or password.
//
// It does not share manifests and configurations. Every node requests them from
// the registry, which checks the access to a private image there.
//
// Read store.go first, then group.go, which sends and answers requests, and
// directory.go, which selects the node that sends a layer.
package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/freespace"
)

// Store is containerd's content store on one node.
type Store struct {
	localStore
	root  string
	group *group

	mu sync.Mutex
	// receiving holds the layers that are arriving.
	receiving map[digest.Digest]*incoming
}

// localStore lists the methods that containerd calls on its own store.
type localStore interface {
	content.Store
	WalkStatusRefs(ctx context.Context, visit func(ref string) error) error
}

func newStore(root string) (*Store, error) {
	s, err := newLocal(root)
	if err != nil {
		return nil, fmt.Errorf("share layers: %w", err)
	}
	return &Store{localStore: s, root: root, receiving: map[digest.Digest]*incoming{}}, nil
}

// Writer opens a blob for writing. It must not wait: containerd has a transaction
// of its database open during the call.
func (s *Store) Writer(ctx context.Context, options ...content.WriterOpt) (content.Writer, error) {
	var wanted content.WriterOpts
	for _, option := range options {
		if err := option(&wanted); err != nil {
			return nil, err
		}
	}
	w, err := s.localStore.Writer(ctx, options...)
	dgst, ok := layerOf(wanted.Ref)
	if err != nil || !ok || wanted.Desc.Size <= 0 {
		return w, err
	}
	status, err := w.Status()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	in := &incoming{path: s.dataOf(wanted.Ref), size: wanted.Desc.Size, received: status.Offset}
	s.mu.Lock()
	s.receiving[dgst] = in
	s.mu.Unlock()
	return &writer{Writer: w, ctx: ctx, store: s, digest: dgst, in: in}, nil
}

// layerOf returns the digest in containerd's name of a transfer, such as
// k8s.io/7/layer-sha256:..., and reports whether nodes share such blobs. They also
// share blobs of a kind unknown to containerd, such as image volumes, which may be as
// large as layers.
func layerOf(ref string) (digest.Digest, bool) {
	i := strings.LastIndex(ref, "-"+digest.SHA256.String()+":")
	if i < 0 {
		return "", false
	}
	kind := ref[strings.LastIndex(ref[:i], "/")+1 : i]
	dgst, err := digest.Parse(ref[i+1:])
	return dgst, err == nil && (kind == "layer" || kind == "unknown")
}

// dataOf returns the file where containerd's store collects incoming data.
func (s *Store) dataOf(ref string) string {
	return filepath.Join(s.root, "ingest", digest.FromString(ref).Encoded(), "data")
}

func (s *Store) blobOf(dgst digest.Digest) string {
	return filepath.Join(s.root, "blobs", dgst.Algorithm().String(), dgst.Encoded())
}

// has reports whether a blob is complete here.
func (s *Store) has(dgst digest.Digest) bool {
	_, err := os.Stat(s.blobOf(dgst))
	return err == nil
}

// opened is a complete blob, or one that is arriving. size is its complete size in bytes.
type opened struct {
	*os.File
	size int64
	// in is nil if the blob is complete.
	in *incoming
}

// open opens a blob or, while it arrives, the file that receives it. That file may
// become the blob at any moment.
func (s *Store) open(dgst digest.Digest) (opened, error) {
	s.mu.Lock()
	in := s.receiving[dgst]
	s.mu.Unlock()
	if in != nil {
		file, err := os.Open(in.path)
		if !errors.Is(err, os.ErrNotExist) {
			return opened{file, in.size, in}, err
		}
	}
	file, err := os.Open(s.blobOf(dgst))
	if err != nil {
		return opened{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return opened{}, errors.Join(err, file.Close())
	}
	return opened{File: file, size: info.Size()}, nil
}

// forget records that a blob no longer arrives.
func (s *Store) forget(dgst digest.Digest, in *incoming) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receiving[dgst] == in {
		delete(s.receiving, dgst)
	}
}

// writer writes a layer that arrives.
type writer struct {
	content.Writer
	ctx    context.Context // of the pull
	store  *Store
	digest digest.Digest
	in     *incoming
	asked  sync.Once
	// taken counts the bytes from other nodes.
	taken int64
}

// Status returns how much has arrived. containerd calls it, holding no locks,
// before it opens a connection to a registry. So the first call takes what other
// nodes have, and counts it as arrived.
func (w *writer) Status() (content.Status, error) {
	status, err := w.Writer.Status()
	if err != nil {
		return status, err
	}
	w.asked.Do(func() { err = w.take(status.Offset) })
	if err != nil {
		return status, err
	}
	return w.Writer.Status()
}

func (w *writer) take(offset int64) error {
	err := w.store.group.fill(w.ctx, w.digest, offset, w.in.size, w)
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if err != nil {
		return err // what a registry sends cannot be written either
	}
	if w.taken > 0 && offset+w.taken == w.in.size && w.Digest() != w.digest {
		log.G(w.ctx).Warnf("layer %s: the copy from other nodes is damaged; asking its registry", w.digest)
		return w.Truncate(0)
	}
	return nil
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.in.advance(int64(n))
	if errors.Is(err, freespace.ErrNoSpace) {
		err = errors.Join(err, w.Truncate(0)) // the store has freed what was written
	}
	return n, err
}

// Truncate continues the layer at a size. The nodes that are receiving the layer from this
// node must start again, because they may have read bytes that will change.
func (w *writer) Truncate(size int64) error {
	w.in.end(broken)
	w.in = &incoming{path: w.in.path, size: w.in.size, received: size}
	w.store.mu.Lock()
	w.store.receiving[w.digest] = w.in
	w.store.mu.Unlock()
	w.taken = 0
	return w.Writer.Truncate(size)
}

// Commit makes a blob of the layer. If the digest is wrong and other nodes sent parts
// of it, it removes everything: containerd would otherwise resume from the same bytes
// again and again.
func (w *writer) Commit(ctx context.Context, size int64, expected digest.Digest, options ...content.Opt) error {
	if w.taken > 0 && w.Digest() != w.digest {
		err := errors.Join(w.Truncate(0), w.Close())
		return errors.Join(fmt.Errorf("layer %s, which came in part from other nodes, is damaged: %w", w.digest, errdefs.ErrDataLoss), err)
	}
	err := w.Writer.Commit(ctx, size, expected, options...)
	if err == nil || errdefs.IsAlreadyExists(err) {
		w.in.end(whole)
	} else {
		w.in.end(broken)
	}
	w.store.forget(w.digest, w.in)
	return err
}

// Sync writes the layer to disk.
func (w *writer) Sync() error {
	if s, ok := w.Writer.(content.Syncer); ok {
		return s.Sync()
	}
	return nil
}

// Close abandons the layer, unless it was committed.
func (w *writer) Close() error {
	w.in.end(broken)
	w.store.forget(w.digest, w.in)
	return w.Writer.Close()
}
