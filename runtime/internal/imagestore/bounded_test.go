package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/freespace"
)

// An archive of 300 KB unpacks to more than the disk holds. It is refused before the
// disk is full, and whatever was written of it is removed.
func TestArchiveLeavesSpaceFree(t *testing.T) {
	disk := corpus.SmallDisk(t)
	remote, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	begin := corpus.Free(t, disk)
	path := corpus.Bomb(t, "large", 300<<20)
	_, err = ReadArchive(t.Context(), newDirect(remote, disk), disk, Archive{Path: path})
	if !errors.Is(err, freespace.ErrNoSpace) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	if left := corpus.Free(t, disk); left < begin-1<<20 {
		t.Errorf("%d of %d bytes are left", left, begin)
	}
}

// Names take memory, although nothing of them is stored.
func TestArchiveNamesAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.tar.gz")
	var all bytes.Buffer
	packed := gzip.NewWriter(&all)
	archive := tar.NewWriter(packed)
	for k := range 1 << 18 {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: fmt.Sprint(k), Linkname: "blob"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), packed.Close(), os.WriteFile(path, all.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	store, err := local.NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadArchive(t.Context(), store, dir, Archive{Path: path}); !errors.Is(err, budget.ErrExceeded) || !strings.Contains(err.Error(), path) {
		t.Errorf("an archive of %d bytes with names only: %v", all.Len(), err)
	}
}

// Manifests and configurations are read into memory.
func TestTextsAreBounded(t *testing.T) {
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put := func(size int) ocispec.Descriptor {
		blob := make([]byte, size)
		desc := ocispec.Descriptor{Digest: digest.FromBytes(blob), Size: int64(size)}
		if err := content.WriteBlob(context.Background(), store, fmt.Sprint(size), bytes.NewReader(blob), desc); err != nil {
			t.Fatal(err)
		}
		return desc
	}
	var b budget.Budget
	texts, most := Texts{store, b.Layer(0)}, int(b.Text())
	if _, err := content.ReadBlob(t.Context(), texts, put(most)); err != nil {
		t.Error(err)
	}
	if _, err := content.ReadBlob(t.Context(), texts, put(most+1)); !errors.Is(err, budget.ErrExceeded) {
		t.Errorf("a text of %d bytes is read into memory: %v", most+1, err)
	}
}
