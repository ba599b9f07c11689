package layer

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
)

// list describes everything in an image, in lines.
func list(t *testing.T, image *erofs.Image) []string {
	t.Helper()
	var lines []string
	first := map[uint64]string{}
	var walk func(name string, number uint64)
	walk = func(name string, number uint64) {
		n, err := image.Inode(number)
		if err != nil {
			t.Fatal(err)
		}
		if first[number] == "" {
			first[number] = name
		}
		line := fmt.Sprintf("%s %o %d:%d %d %d.%d as %s", name, n.Mode, n.UID, n.GID, n.Device, n.Seconds, n.Nanoseconds, first[number])
		xattrs, err := image.Xattrs(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range xattrs {
			line += fmt.Sprintf(" %s=%x", x.Name, x.Value)
		}
		if !n.IsDir() {
			hash := sha256.New()
			if _, err := io.Copy(hash, io.NewSectionReader(content{image, n}, 0, n.Size)); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%s %d bytes %x", line, n.Size, hash.Sum(nil)))
			return
		}
		entries, _, err := image.Directory(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 && strings.Contains(line, ImpliedXattr) && !strings.Contains(line, OpaqueXattr) {
			return // it says nothing, of nothing
		}
		lines = append(lines, line)
		for _, e := range entries {
			walk(path.Join(name, e.Name), e.Number)
		}
	}
	walk("", erofs.Root)
	return lines
}

// TestArchiveYieldsSameLayer: an archive that was written from an image converts to
// that image again.
func TestArchiveYieldsSameLayer(t *testing.T) {
	layers, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layers = append(layers, pack(t,
		tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o1777},
		tar.Header{Name: "dir/.wh..wh..opq", Typeflag: tar.TypeReg},
		tar.Header{Name: "only/in/a/path", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "link-to-below", Typeflag: tar.TypeLink, Linkname: "hidden/below"},
		tar.Header{Name: "hidden/.wh.below", Typeflag: tar.TypeReg},
		tar.Header{Name: ".wh.top", Typeflag: tar.TypeReg},
		tar.Header{Name: "char", Typeflag: tar.TypeChar, Devmajor: 300, Devminor: 70000},
	))
	for k, archive := range layers {
		image, err := convert(t, archive)
		if err != nil {
			t.Fatal(err)
		}
		var written bytes.Buffer
		if err := Archive(image, &written, budget.Budget{}.Layer(0)); err != nil {
			t.Fatal(err)
		}
		again, err := convert(t, written.Bytes())
		if err != nil {
			t.Fatalf("layer %d: %v", k, err)
		}
		got, want := list(t, again), list(t, image)
		if !slices.Equal(got, want) {
			t.Errorf("layer %d:\n%s", k, corpus.Difference(got, want))
		}
		var twice bytes.Buffer
		if err := Archive(image, &twice, budget.Budget{}.Layer(0)); err != nil || !bytes.Equal(written.Bytes(), twice.Bytes()) {
			t.Errorf("layer %d is another one the second time: %v", k, err)
		}
	}
}

// Directories of a malformed image may share their entries. The archive of a small file
// would have any number of them.
func TestSharedEntriesAreBounded(t *testing.T) {
	file := corpus.SharedEntries(2000, 300)
	image, err := erofs.Open(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if err := Archive(image, io.Discard, budget.Budget{}.Layer(int64(len(file)))); !errors.Is(err, budget.ErrExceeded) {
		t.Errorf("an archive of %d entries of a file of %d bytes: %v", 2000*300, len(file), err)
	}
}
