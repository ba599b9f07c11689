package pause

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/layerfile"
	"berth.dev/berth/runtime/internal/snapshotter"
)

// Stores holds the stores of an image's parts.
type Stores struct {
	Content     content.Store
	Images      images.Store
	Snapshotter snapshots.Snapshotter
	// SnapshotterName is the snapshotter's name in garbage collection labels.
	SnapshotterName string
	Leases          leases.Manager
}

// Labels of the images that CRI lists and keeps.
const (
	labelManaged = "io.cri-containerd.image"
	labelPinned  = "io.cri-containerd.pinned"
)

// Seed puts the pause image into the stores and unpacks it. ctx carries the namespace. Seed
// may be called again with the stores of an earlier run, and then does nothing.
func Seed(ctx context.Context, s Stores) error {
	img, err := newImage(runtime.GOARCH)
	if err != nil {
		return err
	}
	if _, err := s.Images.Get(ctx, imageName); err == nil {
		return nil // containerd was restarted
	}
	// Without a lease, the blobs and the snapshot would be garbage until the image exists.
	lease, err := s.Leases.Create(ctx, leases.WithRandomID())
	if err != nil {
		return fmt.Errorf("create lease for pause image: %w", err)
	}
	ctx = leases.WithLease(ctx, lease.ID)
	defer s.Leases.Delete(ctx, lease)

	if err := img.unpack(ctx, s); err != nil {
		return err
	}
	if err := img.store(ctx, s); err != nil {
		return err
	}
	labels := map[string]string{labelManaged: "managed", labelPinned: "pinned"}
	// CRI lists the image under its id, too.
	for _, name := range []string{img.config.Digest.String(), imageName} {
		_, err := s.Images.Create(ctx, images.Image{Name: name, Target: img.manifest, Labels: labels})
		if err != nil && !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("create image %s: %w", name, err)
		}
	}
	return nil
}

func (i *image) store(ctx context.Context, s Stores) error {
	put := func(d ocispec.Descriptor, labels map[string]string) error {
		err := content.WriteBlob(ctx, s.Content, "pause-"+d.Digest.Encoded(),
			bytes.NewReader(i.blobs[d.Digest]), d, content.WithLabels(labels))
		if err != nil && !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("store blob of pause image (%s): %w", d.MediaType, err)
		}
		return nil
	}
	if err := put(i.layer, nil); err != nil {
		return err
	}
	if err := put(i.config, map[string]string{
		"containerd.io/gc.ref.snapshot." + s.SnapshotterName: i.chainID(),
	}); err != nil {
		return err
	}
	return put(i.manifest, map[string]string{
		"containerd.io/gc.ref.content.config": i.config.Digest.String(),
		"containerd.io/gc.ref.content.l.0":    i.layer.Digest.String(),
	})
}

// place writes the program into the root of a layer. It sets the modes explicitly, because
// any user of a pod may have to execute the program, and the umask here is the user's.
func place(root string, program []byte) error {
	path := filepath.Join(root, "pause")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o755), os.Chmod(root, 0o755))
}

// unpack writes the one file of the image straight into its snapshot.
func (i *image) unpack(ctx context.Context, s Stores) error {
	key := fmt.Sprintf(snapshots.UnpackKeyFormat, "pause", i.chainID())
	mounts, err := s.Snapshotter.Prepare(ctx, key, "")
	if err != nil {
		return fmt.Errorf("prepare snapshot of pause image: %w", err)
	}
	write := func(root string) error { return place(root, i.program) }
	switch {
	case len(mounts) == 1 && mounts[0].Type == snapshotter.LayerMount:
		// Also write plain files, because every pod waits for this image. Without them the
		// first pod would also wait for a mount.
		plain := snapshotter.Plain(mounts[0].Source)
		if err = os.Mkdir(plain, 0o755); err == nil {
			err = errors.Join(write(plain), layerfile.Write(mounts[0].Source, bytes.NewReader(i.blobs[i.layer.Digest]), budget.Budget{}.Layer(0)))
		}
	case len(mounts) == 1 && mounts[0].Type == "bind":
		// Without a parent a snapshot is a plain directory, which needs no mount.
		err = write(mounts[0].Source)
	default:
		err = mount.WithTempMount(ctx, mounts, write)
	}
	if err != nil {
		return fmt.Errorf("unpack pause image: %w", err)
	}
	if err := s.Snapshotter.Commit(ctx, i.chainID(), key); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("commit snapshot of pause image: %w", err)
	}
	return nil
}
