package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/freespace"
)

// A blob that would fill the disk is refused before it comes. If it is larger than stated,
// what came of it is freed.
func TestBlobsLeaveSpaceFree(t *testing.T) {
	disk := corpus.SmallDisk(t)
	store, err := NewLocal(filepath.Join(disk, "content"))
	if err != nil {
		t.Fatal(err)
	}
	begin := corpus.Free(t, disk)
	for _, size := range []int64{1 << 40, int64(begin) - 32<<20} {
		_, err := store.Writer(t.Context(), content.WithRef(fmt.Sprint(size)), content.WithDescriptor(ocispec.Descriptor{Digest: digest.FromString("a"), Size: size}))
		if !errors.Is(err, freespace.ErrNoSpace) {
			t.Errorf("a blob of %d bytes: %v", size, err)
		}
	}
	w, err := store.Writer(t.Context(), content.WithRef("layer"), content.WithDescriptor(ocispec.Descriptor{Digest: digest.FromString("a"), Size: 32 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	least := begin
	for range 300 {
		if _, err = w.Write(bytes.Repeat([]byte("c"), 1<<20)); err != nil {
			break
		}
		least = min(least, corpus.Free(t, disk))
	}
	if left := corpus.Free(t, disk); !errors.Is(err, freespace.ErrNoSpace) || least < 32<<20 || left < begin-1<<20 {
		t.Errorf("%d bytes were left, and %d are: %v", least, left, err)
	}
}

// A layer that comes from another node while the disk fills is not requested from its
// registry, and other nodes do not get what was freed of it.
func TestTakenLayerLeavesSpaceFree(t *testing.T) {
	disk := corpus.SmallDisk(t)
	nodes := start(t, 2)
	layer, desc := newLayer(48 << 20)
	if err := nodes[0].pull(t.Context(), &registry{layer: layer}, desc); err != nil {
		t.Fatal(err)
	}
	to := nodes[1].Store
	to.root = filepath.Join(disk, "content")
	var err error
	if to.localStore, err = newLocal(to.root); err != nil {
		t.Fatal(err)
	}
	w, err := to.Writer(t.Context(), content.WithRef("k8s.io/1/layer-"+desc.Digest.String()), content.WithDescriptor(desc))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	full, err := os.Create(filepath.Join(disk, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := unix.Fallocate(int(full.Fd()), 0, 0, int64(corpus.Free(t, disk))-72<<20); err != nil {
		t.Fatal(err)
	}
	// remotes.Fetch returns this error before it asks the registry.
	if _, err := w.Status(); !errors.Is(err, freespace.ErrNoSpace) || nodes[1].counts.Taken.Load() == 0 {
		t.Errorf("%d bytes were taken: %v", nodes[1].counts.Taken.Load(), err)
	}
	if status, err := w.Status(); status.Offset != 0 || err != nil {
		t.Errorf("%d bytes are left: %v", status.Offset, err)
	}
	if own := w.(*writer); own.taken != 0 || own.in.received != 0 || to.receiving[desc.Digest] != own.in {
		t.Errorf("%d bytes are recorded as taken, %d as received", own.taken, own.in.received)
	}
}
