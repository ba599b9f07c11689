package imagecache

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/layercache"
)

// resumable is the smallest size in bytes of a blob whose partial download is
// kept. Smaller blobs arrive sooner than a file is made.
const resumable = 1 << 20

// bringLayer makes the file of a layer. What comes of a large one over the network is
// kept on the way: whoever is ended before all is there has the next one ask for
// the rest only.
func (k *Keeper) bringLayer(ctx context.Context, path string, blob ocispec.Descriptor, id digest.Digest, from remotes.Fetcher, count func(int)) error {
	limit := k.Cache.Limit()
	if _, far := from.(line); !far || blob.Size < resumable {
		return makeLayer(ctx, path, blob, id, from, limit, count)
	}
	partial, err := k.Cache.Partial(blob.Digest)
	if err != nil {
		// Fetch it nevertheless; that reports errors of the blob or the folder.
		return makeLayer(ctx, path, blob, id, from, limit, count)
	}
	defer partial.Close()
	var came int
	resumed := &resumed{from: from, partial: partial}
	err = makeLayer(ctx, path, blob, id, resumed, limit, func(n int) {
		came += n
		count(n)
	})
	noSpace, ended := layercache.NoSpace(err), ctx.Err() != nil
	broken := ended || errors.Is(resumed.failed, errBroken)
	if err == nil || noSpace || !broken && resumed.wrong() {
		_ = partial.Remove() // else it goes when it is old
	}
	if err == nil || ended || !noSpace && (broken || partial.Before() == 0) {
		return err
	}
	// The kept part may be wrong or take the space, or the registry may not serve
	// ranges. So fetch the whole blob.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if came > 0 { // 0 is the beginning of an image
		count(-came)
	}
	err = makeLayer(ctx, path, blob, id, from, limit, count)
	if err == nil || layercache.NoSpace(err) {
		_ = partial.Remove() // else it is as good as it was
	}
	return err
}

// resumed continues a partial download of a blob, and keeps what it fetches.
type resumed struct {
	from    remotes.Fetcher
	partial *layercache.Partial
	// failed is why not all has come that there should be.
	failed error
}

// wrong says that what has come is not the blob: it was all, or more. What a registry
// refuses says nothing of what has come before.
func (r *resumed) wrong() bool { return r.failed == nil || errdefs.IsFailedPrecondition(r.failed) }

func (r *resumed) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if r.partial.Before() >= desc.Size {
		return io.NopCloser(r.partial.Reader()), nil
	}
	content, err := r.from.Fetch(ctx, desc)
	if err != nil {
		r.failed = err
		return nil, err
	}
	if r.partial.Before() == 0 {
		return keeping{content, r}, nil
	}
	// Nothing is requested before the first read. If a registry does not support
	// ranges, it sends the whole blob, and the existing part is skipped.
	seeker, ok := content.(io.Seeker)
	if !ok {
		return nil, errors.Join(errors.ErrUnsupported, content.Close())
	}
	if _, err := seeker.Seek(r.partial.Before(), io.SeekStart); err != nil {
		return nil, errors.Join(err, content.Close())
	}
	rest := keeping{content, r}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(r.partial.Reader(), rest), rest}, nil
}

// keeping adds to a partial blob what is read. That it cannot is no reason to stop.
type keeping struct {
	io.ReadCloser
	of *resumed
}

func (k keeping) Read(p []byte) (int, error) {
	n, err := k.ReadCloser.Read(p)
	_ = k.of.partial.Add(p[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		k.of.failed = err
	}
	return n, err
}
