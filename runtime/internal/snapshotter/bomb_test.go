package snapshotter

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/freespace"
)

// A packed file of 300 KB unpacks to more than the disk holds. It is refused before
// the disk is full, and the part that was written is removed.
func TestBombsLeaveSpaceFree(t *testing.T) {
	disk := corpus.SmallDisk(t)
	path := corpus.Bomb(t, "large", 300<<20)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("not looked at"), Size: 1 << 40}
	layer, err := archived.Part{Path: path, Size: info.Size()}.Apply()
	if err != nil {
		t.Fatal(err)
	}
	unpacked := filepath.Join(disk, "unpacked")
	if err := os.Mkdir(unpacked, 0o700); err != nil {
		t.Fatal(err)
	}
	begin := corpus.Free(t, disk)
	for name, use := range map[string]func() error{
		"a layer in one file": func() error {
			_, err := Differ{Folder: disk}.Apply(t.Context(), desc, []mount.Mount{{Type: LayerMount, Source: filepath.Join(disk, "layer")}}, layer)
			return err
		},
		"an unpacked layer": func() error {
			_, err := Differ{}.Apply(t.Context(), desc, []mount.Mount{{Type: "bind", Source: unpacked, Options: []string{"rbind", "rw"}}}, layer)
			if left := corpus.Free(t, disk); left < begin/8 {
				t.Errorf("%d of %d bytes were left", left, begin)
			}
			// containerd removes the snapshot of an incomplete layer.
			return errors.Join(err, os.Remove(filepath.Join(unpacked, "large")))
		},
	} {
		if err := use(); !errors.Is(err, freespace.ErrNoSpace) {
			t.Errorf("%s: %v", name, err)
		}
		if left := corpus.Free(t, disk); left < begin-1<<20 {
			t.Errorf("%s: %d of %d bytes are left", name, left, begin)
		}
	}
}
