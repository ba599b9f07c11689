package tree

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layer"
)

// open converts archives, the lowest first, and returns their tree.
func open(t *testing.T, archives [][]byte) *Tree {
	t.Helper()
	tree, err := New(openLayers(t, archives, func(file io.ReaderAt) io.ReaderAt { return file }))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// openLayers converts archives, the lowest first, and opens them through readers.
func openLayers(t *testing.T, archives [][]byte, through func(io.ReaderAt) io.ReaderAt) (layers []*erofs.Image) {
	t.Helper()
	for _, a := range archives {
		file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		if err := layer.Convert(bytes.NewReader(a), file, budget.Budget{}.Layer(0)); err != nil {
			t.Fatal(err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		image, err := erofs.Open(through(file), info.Size())
		if err != nil {
			t.Fatal(err)
		}
		layers = slices.Insert(layers, 0, image)
	}
	return layers
}

// describe lists a tree in the form of corpus.Describe.
func describe(t *testing.T, tree *Tree) []string {
	t.Helper()
	var lines []string
	var walk func(path string, n Node)
	walk = func(path string, n Node) {
		f := corpus.File{
			Path: path, Mode: uint32(n.Mode), UID: n.UID, GID: n.GID, Links: n.Links, Size: n.Size,
			Seconds: n.Seconds, Nanosecond: int64(n.Nanoseconds), Xattrs: map[string]string{},
		}
		all, err := tree.Xattrs(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			f.Xattrs[x.Name] = string(x.Value)
		}
		switch n.Mode & erofs.TypeMask {
		case erofs.TypeRegular:
			f.Content = make([]byte, n.Size)
			if got, err := tree.ReadAt(n, f.Content, 0); err != nil || int64(got) != n.Size {
				t.Fatalf("read %s: %d, %v", path, got, err)
			}
		case erofs.TypeSymlink:
			target, err := tree.Link(n)
			if err != nil {
				t.Fatal(err)
			}
			f.Content = []byte(target)
		case erofs.TypeChar, erofs.TypeBlock:
			f.Major, f.Minor = n.Device>>8&0xfff, n.Device&0xff|n.Device>>12&^0xff
		case erofs.TypeDir:
			dir, err := tree.Dir(n.ID)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range dir.Entries {
				child, err := tree.Child(dir, e)
				if err != nil {
					t.Fatal(err)
				}
				walk(filepath.Join(path, e.Name), child)
			}
		}
		lines = append(lines, f.String())
	}
	root, err := tree.Node(RootID)
	if err != nil {
		t.Fatal(err)
	}
	walk(".", root)
	slices.Sort(lines)
	return lines
}

// TestTreeEqualsUnpackedLayers compares a tree with the same layers as containerd
// unpacks them, on top of each other.
func TestTreeEqualsUnpackedLayers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to unpack owners and devices")
	}
	archives, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	unpacked := t.TempDir()
	if err := os.Chmod(unpacked, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, a := range archives {
		if _, err := archive.Apply(t.Context(), unpacked, bytes.NewReader(a)); err != nil {
			t.Fatalf("unpack layer %d: %v", i, err)
		}
	}
	want, err := corpus.Describe(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if d := corpus.Difference(describe(t, open(t, archives)), want); d != "" {
		t.Error(d)
	}
}

// TestNumbersKeepTheirMeaning: a restarted server receives requests for
// numbers that its predecessor assigned.
func TestNumbersKeepTheirMeaning(t *testing.T) {
	archives, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	first, second := open(t, archives), open(t, archives)
	var walk func(id uint64)
	count := 0
	walk = func(id uint64) {
		dir, err := first.Dir(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range slices.Backward(dir.Entries) {
			want, err := first.Child(dir, e)
			if err != nil {
				t.Fatal(err)
			}
			clear(second.dirs)
			got, err := second.Node(e.ID)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s is %+v, %v; was %+v", e.Name, got, err, want)
			}
			count++
			if e.Type == erofs.TypeDir {
				again, err := second.Dir(e.ID)
				if err != nil || again.Parent != id {
					t.Fatalf("%s is in %+v, %v; was in %d", e.Name, again, err, id)
				}
				walk(e.ID)
			}
		}
	}
	walk(RootID)
	if count < 1500 {
		t.Errorf("%d files", count)
	}
}

func TestForgetsDirectories(t *testing.T) {
	archives, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	tree := open(t, archives)
	tree.kept = maxKept + 1
	if lines := describe(t, tree); len(lines) < 1500 {
		t.Errorf("%d files", len(lines))
	}
	if tree.kept > maxKept {
		t.Errorf("%d entries are kept", tree.kept)
	}
}

func TestSparseContentStaysSparse(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archives, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if err := layer.Convert(bytes.NewReader(archives[0]), file, budget.Budget{}.Layer(0)); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > st.Size-8<<20 {
		t.Errorf("%d bytes take %d", st.Size, st.Blocks*512)
	}
}
