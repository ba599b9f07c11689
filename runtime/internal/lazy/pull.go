package lazy

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
)

// Pull is one pull of an image. It prefetches the tables of contents of the layers
// that are made next.
type Pull struct {
	// Login returns the login for a registry's host; an empty one if none is known.
	Login func(ctx context.Context, host string) (Login, error)
	// Blob returns a local blob, such as the image's manifest; nil disables
	// prefetching.
	Blob func(ctx context.Context, d digest.Digest) ([]byte, error)

	// image counts what the layers use together against the budget.
	image budget.Image

	mu sync.Mutex
	// ahead holds the tables of contents of layers that are not made yet; nil before
	// the first layer is made.
	ahead map[digest.Digest]*askedTable
	ended bool
	group sync.WaitGroup
}

// askedTable is a table that was requested before its layer is made.
type askedTable struct {
	layer ocispec.Descriptor
	// come is closed when table and err are set.
	come  chan struct{}
	table packedTable
	err   error
}

const (
	// tablesAtOnce bounds concurrent requests for tables. maxAhead and mostAhead
	// bound the size and the number of prefetched tables in memory. Without
	// prefetching the connection would idle during each request for a table,
	// because containerd makes layers one at a time.
	tablesAtOnce        = 6
	maxAhead, mostAhead = 4 << 20, 32
)

type pullKey struct{}

// WithPull assigns layers that are made with the context to a pull, until end is called.
// end cancels the context and waits for the pull's requests.
func WithPull(ctx context.Context, p *Pull) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, pullKey{}, p), func() {
		cancel()
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.group.Wait()
	}
}

// pullOf returns the pull of a context; an empty one if there is none.
func pullOf(ctx context.Context) *Pull {
	if p, ok := ctx.Value(pullKey{}).(*Pull); ok {
		return p
	}
	return &Pull{}
}

// loginFor returns the login for a host; an empty one if none is known.
func (p *Pull) loginFor(ctx context.Context, host string) (Login, error) {
	if p.Login == nil {
		return Login{}, nil
	}
	return p.Login(ctx, host)
}

// askAhead, when first called, requests the tables of contents of a layer and of
// all layers above it. If that fails, each layer's table is requested when the
// layer is made.
func (p *Pull) askAhead(ctx context.Context, m Maker, l Layer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ahead != nil || p.ended || p.Blob == nil || l.Manifest == "" {
		return
	}
	p.ahead = map[digest.Digest]*askedTable{}
	layers, err := p.layersFrom(ctx, l)
	if err != nil || len(layers) < 2 {
		return // a single layer gains nothing
	}
	blobs, login, err := m.first(ctx, p, l.Image)
	if err != nil {
		return
	}
	todo := make(chan *askedTable, len(layers))
	for _, layer := range layers {
		a := &askedTable{layer: layer, come: make(chan struct{})}
		p.ahead[layer.Digest] = a
		todo <- a
	}
	close(todo)
	for range min(tablesAtOnce, len(layers)) {
		p.group.Go(func() {
			for a := range todo {
				source := blobs.of(a.layer.Digest)
				source.Size = a.layer.Size
				r := newRemote(source, nil, func() (Login, error) { return login, nil })
				a.table, a.err = r.contents(ctx, maxAhead)
				close(a.come)
			}
		})
	}
}

// sizeOf returns the size of a layer in bytes, as the image's manifest states it; 0 if the
// manifest cannot be read. A manifest without the size is an error.
func (p *Pull) sizeOf(ctx context.Context, l Layer) (int64, error) {
	if p.Blob == nil || l.Manifest == "" {
		return 0, nil
	}
	manifest, err := p.manifest(ctx, l.Manifest)
	if err != nil {
		return 0, nil
	}
	for _, layer := range manifest.Layers {
		if layer.Digest == l.Digest && layer.Size > 0 {
			return layer.Size, nil
		}
	}
	return 0, fmt.Errorf("the manifest does not state the size of layer %s", l.Digest)
}

func (p *Pull) manifest(ctx context.Context, d digest.Digest) (manifest ocispec.Manifest, err error) {
	text, err := p.Blob(ctx, d)
	if err == nil {
		err = json.Unmarshal(text, &manifest)
	}
	if err != nil {
		return manifest, fmt.Errorf("read manifest: %w", err)
	}
	return manifest, nil
}

// layersFrom returns at most mostAhead of an image's eStargz layers, from one layer on.
// containerd makes them in this order. If a layer turns out to be in a shared folder,
// its table is never taken, and is dropped at the end of the pull.
func (p *Pull) layersFrom(ctx context.Context, l Layer) (layers []ocispec.Descriptor, err error) {
	manifest, err := p.manifest(ctx, l.Manifest)
	if err != nil {
		return nil, err
	}
	seen := map[digest.Digest]bool{}
	for _, layer := range manifest.Layers {
		if len(seen) == 0 && layer.Digest != l.Digest || seen[layer.Digest] || len(layers) == mostAhead {
			continue
		}
		seen[layer.Digest] = true
		if layer.Annotations[estargz.TOCJSONDigestAnnotation] != "" && layer.Size > 0 {
			layers = append(layers, layer)
		}
	}
	return layers, nil
}

// take waits for the prefetched table of a layer, and removes it from the pull. It reports
// whether the table has arrived.
func (p *Pull) take(ctx context.Context, layer digest.Digest) (t packedTable, ok bool) {
	p.mu.Lock()
	a := p.ahead[layer]
	delete(p.ahead, layer)
	p.mu.Unlock()
	if a == nil {
		return t, false
	}
	select {
	case <-a.come:
		return a.table, a.err == nil
	case <-ctx.Done():
		return t, false
	}
}
