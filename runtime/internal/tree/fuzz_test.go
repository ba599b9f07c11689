package tree

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/layer"
)

// FuzzLayers merges layers that the input describes. Four bytes describe an entry:
// its kind, its path, a link's target, and its owner.
func FuzzLayers(f *testing.F) {
	const next = 7
	f.Add([]byte{0, 0b000001, 0, 1, next, 0, 0, 0, 1, 0b000010, 0b000001, 2, next, 0, 0, 0, 1, 0b000011, 0b000010, 3})
	f.Add([]byte{0, 0b010101, 0, 1, 0, 0b110101, 0, 1, next, 0, 0, 0, 3, 0b010101, 0, 1, 4, 0b000001, 0, 0, 1, 0b000101, 0b010101, 0, next, 0, 0, 0, 5, 1, 1, 1, 6, 2, 0, 0, 2, 3, 0, 0})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, input []byte) {
		fuzzbound.Watch(t)
		archives := described(t, input)
		if archives == nil {
			return
		}
		var layers []*erofs.Image
		for i, archive := range archives {
			file, err := os.Create(filepath.Join(dir, string(rune('a'+i))))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if layer.Convert(bytes.NewReader(archive), file, budget.Budget{}.Layer(0)) != nil {
				return
			}
			layers = slices.Insert(layers, 0, opened(t, file, erofs.OpenChanging))
		}
		walkBoth(t, layers, true)
	})
}

// described returns the archives that an input describes, the lowest first.
func described(t testing.TB, input []byte) (archives [][]byte) {
	const maxLayers, maxEntries = 8, 64
	if len(input) > 4*maxEntries {
		return nil
	}
	var entries []tar.Header
	flush := func() { archives, entries = append(archives, archived(t, entries...)), nil }
	for ; len(input) >= 4; input = input[4:] {
		kind, path, target, owner := input[0]%8, pathOf(input[1]), pathOf(input[2]), int(input[3])
		header := tar.Header{Name: path, Uid: owner}
		switch kind {
		case 0:
			header.Typeflag = tar.TypeReg
		case 1:
			header.Typeflag, header.Linkname = tar.TypeLink, target
		case 2:
			header.Typeflag, header.Linkname = tar.TypeSymlink, target
		case 3:
			header.Typeflag, header.Name = tar.TypeReg, filepath.Join(filepath.Dir(path), ".wh."+filepath.Base(path))
		case 4:
			header.Typeflag, header.Name = tar.TypeReg, path+"/.wh..wh..opq"
		case 5:
			header.Typeflag = tar.TypeDir
		case 6:
			header.Typeflag, header.Devmajor = tar.TypeChar, int64(owner%2)
		default:
			if flush(); len(archives) == maxLayers {
				return nil
			}
			continue
		}
		entries = append(entries, header)
	}
	flush()
	return archives
}

// pathOf returns a path of one to four names, each of them a, b or c.
func pathOf(b byte) string {
	path := string(rune('a' + b%4%3))
	for b >>= 2; b != 0; b >>= 2 {
		path += "/" + string(rune('a'+b%4%3))
	}
	return path
}

func opened(t *testing.T, file *os.File, open func(io.ReaderAt, int64) (*erofs.Image, error)) *erofs.Image {
	t.Helper()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	image, err := open(file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// maxVisited bounds the nodes of a walk: a malformed image may lead in circles.
const maxVisited = 300

// walkBoth walks the tree of layers, and looks each number up in a second tree, as
// a restarted server does. If sound is true, every read must succeed.
func walkBoth(t *testing.T, layers []*erofs.Image, sound bool) {
	t.Helper()
	tree, err := New(layers)
	if err != nil {
		t.Fatal(err)
	}
	fresh, _ := New(layers)
	fresh.maxLinkSteps, fresh.maxMerged = tree.maxLinkSteps, tree.maxMerged
	left := maxVisited
	var walk func(n Node)
	walk = func(n Node) {
		if left--; left < 0 {
			return
		}
		buffer := make([]byte, 100)
		if n.Mode&erofs.TypeMask == erofs.TypeRegular {
			_, err = tree.ReadAt(n, buffer, 0)
		} else if n.Mode&erofs.TypeMask == erofs.TypeSymlink {
			_, err = tree.Link(n)
		}
		_, xattrs := tree.Xattrs(n)
		if sound && (err != nil || xattrs != nil) {
			t.Fatalf("read node %d: %v, %v", n.ID, err, xattrs)
		}
		if !n.IsDir() {
			return
		}
		dir, err := tree.Dir(n.ID)
		if err != nil {
			if sound {
				t.Fatalf("read directory %d: %v", n.ID, err)
			}
			return
		}
		if !sound {
			dir.Entries = dir.Entries[:min(len(dir.Entries), maxVisited)]
		}
		for i, e := range dir.Entries {
			if sound && i > 0 && dir.Entries[i-1].Name >= e.Name {
				t.Fatalf("%q comes after %q", e.Name, dir.Entries[i-1].Name)
			}
			child, err := tree.Child(dir, e)
			clear(fresh.dirs)
			again, problem := fresh.Node(e.ID)
			if sound && (err != nil || problem != nil || !reflect.DeepEqual(child, again)) {
				t.Fatalf("%q in directory %d is %+v, %v; for a restarted server %+v, %v", e.Name, n.ID, child, err, again, problem)
			}
			named, err2 := tree.Lookup(n.ID, e.Name)
			if sound && (err2 != nil || !reflect.DeepEqual(child, named)) {
				t.Fatalf("%q in directory %d is %+v, and by its name %+v, %v", e.Name, n.ID, child, named, err2)
			}
			if err == nil {
				walk(child)
			}
		}
	}
	if root, err := tree.Node(RootID); err == nil {
		walk(root)
	} else if sound {
		t.Fatal(err)
	}
}

// FuzzImages changes bytes of the two images of a tree.
func FuzzImages(f *testing.F) {
	var whole [][]byte
	for _, archive := range described(f, []byte{
		0, 0b010101, 0, 1, 0, 0b000010, 0, 1, 5, 0b001001, 0, 1, 7, 0, 0, 0,
		1, 0b000001, 0b010101, 2, 4, 0b000110, 0, 1, 3, 0b000010, 0, 0, 2, 0b000001, 3, 1,
	}) {
		file, err := os.Create(filepath.Join(f.TempDir(), "layer"))
		if err != nil {
			f.Fatal(err)
		}
		if err := layer.Convert(bytes.NewReader(archive), file, budget.Budget{}.Layer(0)); err != nil {
			f.Fatal(err)
		}
		file.Close()
		image, err := os.ReadFile(file.Name())
		if err != nil {
			f.Fatal(err)
		}
		whole = append(whole, image)
	}
	f.Add(uint16(0), []byte{}, uint16(0), []byte{})
	f.Add(uint16(4096), []byte{1, 2, 3}, uint16(1200), []byte{9})
	f.Fuzz(func(t *testing.T, at uint16, change []byte, at2 uint16, change2 []byte) {
		fuzzbound.Watch(t)
		lower, upper := bytes.Clone(whole[0]), bytes.Clone(whole[1])
		copy(lower[int(at)%len(lower):], change)
		copy(upper[int(at2)%len(upper):], change2)
		var layers []*erofs.Image
		for _, image := range [][]byte{upper, lower} {
			opened, err := erofs.OpenChanging(bytes.NewReader(image), int64(len(image)))
			if err != nil {
				return
			}
			layers = append(layers, opened)
		}
		walkBoth(t, layers, false)
	})
}
