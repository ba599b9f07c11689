package peers

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/freespace"
)

// A blob that would fill the disk is refused before, and what came of it is freed.
func TestBlobsLeaveSpaceFree(t *testing.T) {
	disk := corpus.SmallDisk(t)
	store, err := NewLocal(filepath.Join(disk, "content"))
	if err != nil {
		t.Fatal(err)
	}
	begin := corpus.Free(t, disk)
	w, err := store.Writer(t.Context(), content.WithRef("layer"), content.WithDescriptor(ocispec.Descriptor{Digest: digest.FromString("a"), Size: 1 << 40}))
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
