package snapshotter

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/freespace"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/imagestore"
)

// unpack writes the files of a layer into mounts, as containerd's own differ does
// in a user namespace. It keeps part of their file system free, and fits owners to
// the IDs of this node.
func (d Differ) unpack(ctx context.Context, blobs content.Provider, desc ocispec.Descriptor, mounts []mount.Mount) (applied ocispec.Descriptor, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("unpack layer %s: %w", desc.Digest, err)
		}
	}()
	guard, err := freespace.Watch(writtenTo(mounts))
	if err != nil {
		return applied, err
	}
	blob, err := blobs.ReaderAt(ctx, desc)
	if err != nil {
		return applied, err
	}
	defer blob.Close()
	most := d.count(ctx, blob.Size())
	unpacked, err := imagestore.Decompress(content.NewReader(blob), most)
	if err != nil {
		return applied, err
	}
	defer unpacked.Close()
	sum := sha256.New()
	var size counter
	layer := io.TeeReader(guard.Reader(unpacked), io.MultiWriter(sum, &size))
	misfits := idmap.Misfits{Map: d.IDs}
	fit := archive.WithFilter(func(header *tar.Header) (bool, error) {
		if err := most.Entry(header); err != nil {
			return false, err
		}
		header.Uid, header.Gid = misfits.Fit(header.Name, header.Uid, header.Gid)
		return true, nil
	})
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		_, err := archive.Apply(ctx, root, most.Archive(layer), fit)
		return err
	})
	if err == nil {
		_, err = io.Copy(io.Discard, layer) // the digest covers the data after the end of the archive
	}
	if err != nil {
		return applied, err
	}
	d.report(&misfits)
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: int64(size), Digest: digest.NewDigest(digest.SHA256, sum)}, nil
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// writtenTo returns a directory on the file system that receives the files.
func writtenTo(mounts []mount.Mount) string {
	for _, m := range mounts {
		for _, option := range m.Options {
			if dir, is := strings.CutPrefix(option, "upperdir="); is {
				return dir
			}
		}
	}
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		return mounts[0].Source
	}
	return os.TempDir()
}
