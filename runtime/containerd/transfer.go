package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/streaming"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/core/transfer/image"
	transferregistry "github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/lazy"
)

// pulls wraps containerd's plugin for pulls.
type pulls struct {
	transfer.Transferrer
	// announce makes containerd ask the mirror for an image that it has. It is set before
	// the first pull; nil without a mirror.
	announce func(ctx context.Context, image string)
	// budget bounds what images may contain.
	budget budget.Budget
	// content and layers receive pulled images.
	content content.Store
	layers  snapshots.Snapshotter
}

// wrap puts pulls around the plugin that pulls images: nowhere else does containerd
// know what a pull is for.
func (p *pulls) wrap() {
	all := registry.Graph(func(*plugin.Registration) bool { return false })
	registry.Reset()
	for i := range all {
		if all[i].Type == plugins.TransferPlugin {
			all[i].InitFn = p.around(all[i].InitFn)
		}
		registry.Register(&all[i])
	}
}

func (p *pulls) around(start func(*plugin.InitContext) (any, error)) func(*plugin.InitContext) (any, error) {
	return func(ic *plugin.InitContext) (any, error) {
		inner, err := start(ic)
		if err != nil {
			return nil, err
		}
		instance, err := ic.GetSingle(plugins.MetadataPlugin)
		if err != nil {
			return nil, err
		}
		db := instance.(*metadata.DB)
		p.Transferrer, p.content, p.layers = inner.(transfer.Transferrer), db.ContentStore(), db.Snapshotter("erofs")
		return p, nil
	}
}

// Transfer pulls an image.
func (p *pulls) Transfer(ctx context.Context, from, to any, opts ...transfer.Opt) error {
	source, pulled := from.(*transferregistry.OCIRegistry)
	target, stored := to.(*image.Store)
	if !pulled || !stored {
		return p.Transferrer.Transfer(ctx, from, to, opts...)
	}
	if p.announce != nil {
		p.announce(ctx, source.Image())
	}
	var unknown sync.Map // errors of hosts, so that not each layer waits for one
	ctx, end := lazy.WithPull(ctx, &lazy.Pull{
		Login: func(ctx context.Context, host string) (lazy.Login, error) {
			if err, known := unknown.Load(host); known {
				return lazy.Login{}, err.(error)
			}
			login, err := askLogin(ctx, source, host, answersWithin)
			if err != nil {
				unknown.Store(host, err)
			}
			return login, err
		},
		Blob: func(ctx context.Context, d digest.Digest) ([]byte, error) {
			return content.ReadBlob(ctx, p.content, ocispec.Descriptor{Digest: d})
		},
	})
	defer end()
	return p.Transferrer.Transfer(ctx, naming{source}, checked{target, p}, opts...)
}

type imageStore = image.Store

// checked checks an image before it gets its name.
type checked struct {
	*imageStore
	pulls *pulls
}

// ImageFilter refuses an image for another kind of machine as soon as its
// configuration has arrived, before any layer is fetched. containerd compares only the
// platforms in an index, and would run an image that is a single manifest. It also
// refuses manifests and configurations beyond the image's budget before they are decoded.
func (c checked) ImageFilter(children images.HandlerFunc, store content.Store) images.HandlerFunc {
	next := c.imageStore.ImageFilter(c.pulls.checkTexts(children), store)
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		texts := imagestore.Texts{Provider: store, Most: c.pulls.budget.Layer(0)}
		if images.IsIndexType(desc.MediaType) || images.IsManifestType(desc.MediaType) {
			if _, err := content.ReadBlob(ctx, texts, desc); err != nil {
				return nil, err
			}
		}
		if images.IsConfigType(desc.MediaType) {
			if err := imagestore.CheckPlatform(ctx, texts, desc); err != nil {
				return nil, err
			}
		}
		all, err := next(ctx, desc)
		if err == nil && images.IsManifestType(desc.MediaType) {
			err = c.pulls.budget.CheckLayers(len(all) - 1)
		}
		return all, err
	}
}

// checkTexts checks the stated sizes of manifests, indexes and configurations before they
// are fetched. containerd fetches no more than the stated size, but would store all of it.
func (p *pulls) checkTexts(children images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		all, err := children(ctx, desc)
		if err != nil {
			return nil, err
		}
		for _, child := range all {
			if !images.IsIndexType(child.MediaType) && !images.IsManifestType(child.MediaType) && !images.IsConfigType(child.MediaType) {
				continue
			}
			if err := p.budget.CheckTextSize(child.Size); err != nil {
				return nil, fmt.Errorf("read blob %s: %w", child.Digest, err)
			}
		}
		return all, nil
	}
}

// Store gives an image its name after it has checked the image's lazy layers.
func (c checked) Store(ctx context.Context, desc ocispec.Descriptor, store images.Store) ([]images.Image, error) {
	if c.pulls.layers != nil {
		if err := lazy.CheckClaims(ctx, c.pulls.content, c.pulls.layers, desc); err != nil {
			return nil, err
		}
	}
	return c.imageStore.Store(ctx, desc, store)
}

// answersWithin bounds the wait for a login. An unreadable login gets no answer, and
// other pods of the node wait meanwhile.
const answersWithin = 5 * time.Second

// askLogin returns the login of a pull for a host. The source gives it over a stream, as
// it does when another process pulls for it.
func askLogin(ctx context.Context, source *transferregistry.OCIRegistry, host string, within time.Duration) (login lazy.Login, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("the password of %s is not available", host))
	defer cancel()
	s := stream{ctx: ctx, questions: make(chan typeurl.Any), answers: make(chan typeurl.Any)}
	if _, err := source.MarshalAny(ctx, &s); err != nil {
		return login, fmt.Errorf("ask for the password of %s: %w", host, err)
	}
	if !s.used {
		return login, nil
	}
	question, err := typeurl.MarshalAny(&transfertypes.AuthRequest{Host: host, Reference: source.Image()})
	if err != nil {
		return login, err
	}
	select {
	case s.questions <- question:
	case <-ctx.Done():
		return login, context.Cause(ctx)
	}
	select {
	case answer := <-s.answers:
		var a transfertypes.AuthResponse
		if err := typeurl.UnmarshalTo(answer, &a); err != nil {
			return login, fmt.Errorf("ask for the password of %s: %w", host, err)
		}
		if a.AuthType == transfertypes.AuthType_HEADER {
			return login, errors.New("the registry's login is a header, which is not supported")
		}
		return lazy.Login{User: a.Username, Secret: a.Secret}, nil
	case <-ctx.Done():
		return login, context.Cause(ctx)
	}
}

// stream is a streaming.Stream within this process. The source of a pull receives
// questions for a login from it, and sends the answers.
type stream struct {
	ctx                context.Context
	used               bool
	questions, answers chan typeurl.Any
}

// Create returns the stream. A source calls it only if it has a login.
func (s *stream) Create(context.Context, string) (streaming.Stream, error) {
	s.used = true
	return s, nil
}

// Recv returns a question.
func (s *stream) Recv() (typeurl.Any, error) {
	select {
	case question := <-s.questions:
		return question, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

// Send passes on an answer.
func (s *stream) Send(answer typeurl.Any) error {
	select {
	case s.answers <- answer:
		return nil
	case <-s.ctx.Done():
		return io.EOF
	}
}

// Close does nothing: a stream ends with its context.
func (s *stream) Close() error { return nil }
