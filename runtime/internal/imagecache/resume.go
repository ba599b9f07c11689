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

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/layercache"
)

// resumable is the smallest size in bytes of a blob whose partial download is kept.
// Smaller blobs arrive faster than a file can be created.
const resumable = 1 << 20

// bringLayer makes the file of a layer. It keeps the downloaded part of a large
// blob, so that after an interruption the next pull requests only the rest. It counts what
// the layer uses against the limits of image.
func (p *Populator) bringLayer(ctx context.Context, path string, blob ocispec.Descriptor, id digest.Digest, from remotes.Fetcher, image *budget.Image, count func(int)) error {
	limit := p.Cache.Limit()
	try := func(from remotes.Fetcher, count func(int)) error {
		most := p.Budget.Stream(blob.Size).Of(image)
		err := makeLayer(ctx, path, blob, id, from, limit, most, count)
		if err != nil {
			most.Drop() // the next try reads the layer from its beginning
		}
		return err
	}
	if _, far := from.(connection); !far || blob.Size < resumable {
		return try(from, count)
	}
	partial, err := p.Cache.Partial(blob.Digest)
	if err != nil {
		// Fetch the blob nevertheless, which reports errors of the blob or the folder.
		return try(from, count)
	}
	defer partial.Close()
	var came int
	resumed := &resumed{from: from, partial: partial}
	err = try(resumed, func(n int) {
		came += n
		count(n)
	})
	if errors.Is(err, budget.ErrExceeded) {
		return err // keep the part: another try may have a higher limit, and needs only the rest
	}
	noSpace, ended := layercache.NoSpace(err), ctx.Err() != nil
	broken := ended || errors.Is(resumed.failed, errBroken)
	if err == nil || noSpace || !broken && resumed.wrong() {
		_ = partial.Remove() // otherwise it is removed when it is old
	}
	if err == nil || ended || !noSpace && (broken || partial.Before() == 0) {
		return err
	}
	// The kept part may be wrong or take the space, or the registry may not serve
	// ranges. So fetch the whole blob.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if came > 0 { // a count of 0 would mark the beginning of an image
		count(-came)
	}
	err = try(from, count)
	if err == nil || layercache.NoSpace(err) {
		_ = partial.Remove() // otherwise it is unchanged
	}
	return err
}

// resumed continues a partial download of a blob, and keeps what it fetches.
type resumed struct {
	from    remotes.Fetcher
	partial *layercache.Partial
	// failed is the reason why the blob is incomplete.
	failed error
}

// wrong reports whether the received data is not the blob although all of it arrived, or
// more. A refusal of the registry does not mean that earlier data is wrong.
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

// keeping appends the bytes that are read to a partial blob. It ignores errors of that.
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
