package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
)

// archived returns a layer with these entries.
func archived(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, header := range entries {
		header.Mode = 0o755
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func hardLink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
}

var errTooManyReads = errors.New("too many reads of the layers")

// countedReader fails after a number of reads, so that endless work ends in an
// error.
type countedReader struct {
	io.ReaderAt
	left *int
}

func (r countedReader) ReadAt(into []byte, at int64) (int, error) {
	if *r.left--; *r.left < 0 {
		return 0, errTooManyReads
	}
	return r.ReaderAt.ReadAt(into, at)
}

// openCounted is like open, but permits each layer only a number of reads.
func openCounted(t *testing.T, reads int, archives [][]byte) *Tree {
	t.Helper()
	tree, err := New(openLayers(t, archives, func(file io.ReaderAt) io.ReaderAt { return countedReader{file, &reads} }))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestNewReadsNoDirectory: the server of all mounts makes a tree before it looks
// for the next request, so New must not be slow.
func TestNewReadsNoDirectory(t *testing.T) {
	reads := 100
	layers := openLayers(t, [][]byte{archived(t, hardLink("f", "nothere"))}, func(file io.ReaderAt) io.ReaderAt { return countedReader{file, &reads} })
	reads = 0
	tree, err := New(layers)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Dir(RootID); !errors.Is(err, errTooManyReads) {
		t.Errorf("the root is known without a read of the layer: %v", err)
	}
}

func TestHardLinksToMissingFilesTakeLinearWork(t *testing.T) {
	const layers = 30
	var archives [][]byte
	for k := range layers {
		archives = append(archives, archived(t, hardLink(fmt.Sprintf("f%d", k), "nothere")))
	}
	dir, err := openCounted(t, 100*layers, archives).Dir(RootID)
	if err != nil {
		t.Fatal(err)
	}
	if len(dir.Entries) != 0 {
		t.Errorf("the root has %v, of which nothing exists", dir.Entries)
	}
}

// Each layer links to the link of the layer below. The directory has so many links
// that resolving all of them for each one would take too long.
func TestHardLinkChainResolves(t *testing.T) {
	const layers, beside = 30, 8
	archives := [][]byte{archived(t, tar.Header{Typeflag: tar.TypeReg, Name: "a/b/f0", Uid: 77})}
	for k := 1; k < layers; k++ {
		entries := []tar.Header{hardLink(fmt.Sprintf("a/b/f%d", k), fmt.Sprintf("a/b/f%d", k-1))}
		for i := range beside {
			entries = append(entries, hardLink(fmt.Sprintf("a/b/g%d.%d", k, i), fmt.Sprintf("a/b/f%d", max(0, k-1-i))))
		}
		archives = append(archives, archived(t, entries...))
	}
	tree := openCounted(t, 50_000, archives)
	n := lookUp(t, tree, "a/b/f0")
	for _, name := range []string{"f1", "f15", "f29", "g29.7"} {
		if got := lookUp(t, tree, "a/b/"+name); got.ID != n.ID || got.UID != 77 {
			t.Errorf("%s is %+v; f0 is %+v", name, got, n)
		}
	}
	dir, err := tree.Dir(lookUp(t, tree, "a/b").ID)
	if err != nil || len(dir.Entries) != layers+(layers-1)*beside {
		t.Errorf("the directory has %d entries, %v", len(dir.Entries), err)
	}
}

// A link shows the file that the layers below its own have at the path.
func TestHardLinkSeesOnlyLowerLayers(t *testing.T) {
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
	file := func(name string, uid int) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Uid: uid} }
	tree := openCounted(t, 10_000, [][]byte{
		archived(t, file("d/x", 1), file("d/gone", 1), file("e/hidden", 1), file("s/y", 1), dir("folder")),
		archived(t, file("d/x", 2), file("d/.wh.gone", 0), dir("e"), file("e/.wh..wh..opq", 0), file("s", 2)),
		archived(t, hardLink("x", "d/x"), hardLink("gone", "d/gone"), hardLink("hidden", "e/hidden"), hardLink("y", "s/y"), hardLink("folder2", "folder")),
		archived(t, file("d/x", 3)),
	})
	root, err := tree.Dir(RootID)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range root.Entries {
		names = append(names, e.Name)
	}
	if want := []string{"d", "e", "folder", "s", "x"}; !slices.Equal(names, want) {
		t.Errorf("the root has %v instead of %v", names, want)
	}
	if n := lookUp(t, tree, "x"); n.UID != 2 {
		t.Errorf("the link leads to the file of layer %d instead of 2", n.UID)
	}
	if n := lookUp(t, tree, "d/x"); n.UID != 3 {
		t.Errorf("the file is that of layer %d instead of 3", n.UID)
	}
}

func TestHardLinksPerDirectoryAreBounded(t *testing.T) {
	const deep = 1000
	target := strings.Repeat("d/", deep) + "f"
	archives := [][]byte{
		archived(t, tar.Header{Typeflag: tar.TypeReg, Name: target}),
		archived(t, hardLink("one", target)),
	}
	tree := open(t, archives)
	if n := lookUp(t, tree, "one"); n.Mode&erofs.TypeMask != erofs.TypeRegular {
		t.Errorf("a link to a file in %d directories leads to %+v", deep, n)
	}
	tree = open(t, archives)
	tree.maxLinkSteps = deep

	if dir, err := tree.Dir(RootID); !errors.Is(err, ErrLinks) {
		t.Errorf("links that take more than %d steps: %+v, %v", deep, dir, err)
	}
}

func lookUp(t *testing.T, tree *Tree, path string) Node {
	t.Helper()
	n := Node{ID: RootID}
	for name := range strings.SplitSeq(path, "/") {
		var err error
		if n, err = tree.Lookup(n.ID, name); err != nil {
			t.Fatalf("look up %q of %q: %v", name, path, err)
		}
	}
	return n
}

// The path of a directory is looked up through all directories above it, which may be
// large. The work for that is bounded, as is a directory that many layers have.
func TestLargeDirectoriesAreBounded(t *testing.T) {
	file := corpus.SharedEntries(100, 300)
	var layers []*erofs.Image
	for range 3 {
		image, err := erofs.Open(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, image)
	}
	all, err := New(layers[:1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.Dir(all.id(inode{0, corpus.InodeNumber(1)})); err != nil {
		t.Fatal(err)
	}
	all.maxLinkSteps = 399
	clear(all.dirs)
	if _, err := all.Dir(all.id(inode{0, corpus.InodeNumber(1)})); !errors.Is(err, erofs.ErrCorrupt) {
		t.Errorf("a directory below 400 entries, where 399 may be read: %v", err)
	}
	if all, err = New(layers); err != nil {
		t.Fatal(err)
	}
	all.maxMerged = 299
	if _, err := all.Dir(RootID); !errors.Is(err, erofs.ErrTooLarge) {
		t.Errorf("300 entries of three layers, where 299 may be merged: %v", err)
	}
	usual := layers[0].MaxEntries()
	layers[0].MultiplyLimits(3)
	if all, err = New(layers); err != nil || all.maxMerged != 6*usual {
		t.Errorf("%d entries may be merged, of layers that may have %d: %v", all.maxMerged, 3*usual, err)
	}
}
