package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/tree"
)

type entry struct {
	tar.Header
	content string
}

// merged returns the tree of layers, the lowest first.
func merged(t *testing.T, archives ...[]byte) *tree.Tree {
	t.Helper()
	var layers []*erofs.Image
	for _, archive := range archives {
		file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		if err := layer.Convert(bytes.NewReader(archive), file, budget.Budget{}.Layer(0)); err != nil {
			t.Fatal(err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		image, err := erofs.Open(file, info.Size())
		if err != nil {
			t.Fatal(err)
		}
		layers = append([]*erofs.Image{image}, layers...)
	}
	all, err := tree.New(layers)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func pack(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		e.Size, e.Format = int64(len(e.content)), tar.FormatPAX
		e.ModTime = time.Unix(1700000000, 5)
		err := w.WriteHeader(&e.Header)
		if err == nil {
			_, err = w.Write([]byte(e.content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func write(t *testing.T, ctx context.Context, from *tree.Tree) (string, Left, error) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	left, err := Write(ctx, from, root, budget.Budget{}.Layer(0), func(int) {})
	return dir, left, err
}

func TestWrite(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	large := strings.Repeat("\x00", 3<<20) + "end"
	below := pack(t,
		entry{Header: tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}},
		entry{Header: tar.Header{Name: "closed/", Typeflag: tar.TypeDir, Mode: 0o000, Uid: 7}},
		entry{Header: tar.Header{Name: "closed/secret", Typeflag: tar.TypeReg, Mode: 0o000}, content: "secret"},
		entry{Header: tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}},
		entry{Header: tar.Header{Name: "bin/su", Typeflag: tar.TypeReg, Mode: 0o4755, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}, content: "su"},
		entry{Header: tar.Header{Name: "one", Typeflag: tar.TypeReg, Mode: 0o644}, content: "one"},
		entry{Header: tar.Header{Name: "gone", Typeflag: tar.TypeReg, Mode: 0o644}},
		entry{Header: tar.Header{Name: "large", Typeflag: tar.TypeReg, Mode: 0o644}, content: large},
		entry{Header: tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3}},
		entry{Header: tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o666}},
		entry{Header: tar.Header{Name: "escape", Typeflag: tar.TypeSymlink, Linkname: outside}},
		entry{Header: tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "../../.."}},
	)
	above := pack(t,
		entry{Header: tar.Header{Name: ".wh.gone", Typeflag: tar.TypeReg}},
		entry{Header: tar.Header{Name: "two", Typeflag: tar.TypeLink, Linkname: "one"}},
	)
	dir, left, err := write(t, t.Context(), merged(t, below, above))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Left{Special: 2, Attributes: 1, Owners: 1, SetID: 1}); left != want {
		t.Errorf("%+v is left out, want %+v", left, want)
	}
	for name, mode := range map[string]fs.FileMode{
		"": fs.ModeDir | 0o755, "closed": fs.ModeDir | 0o700, "closed/secret": 0o400, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "bin/su": 0o755, "one": 0o644,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%q: %v, %v; want %v", name, info.Mode(), err, mode)
		}
		if name != "" && name != "bin" && info.ModTime().UnixNano() != 1700000000000000005 {
			t.Errorf("%q is of %v", name, info.ModTime())
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "large")); err != nil || string(text) != large {
		t.Errorf("large has %d bytes, %v", len(text), err)
	}
	var st, other unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(dir, "one"), &st), unix.Stat(filepath.Join(dir, "two"), &other)); err != nil || st.Ino != other.Ino {
		t.Errorf("two names of a file: %d, %d, %v", st.Ino, other.Ino, err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "escape")); err != nil || target != outside {
		t.Errorf("link to %q, %v", target, err)
	}
	for _, name := range []string{"gone", "pipe", "dev/null"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
}

// A layer lists a folder where a lower one has a link. Nothing is written to the
// link's target.
func TestDanglingLinks(t *testing.T) {
	outside := t.TempDir()
	below := pack(t, entry{Header: tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: outside}})
	above := pack(t, entry{Header: tar.Header{Name: "way/file", Typeflag: tar.TypeReg, Mode: 0o644}, content: "x"})
	dir, _, err := write(t, t.Context(), merged(t, below, above))
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("written outside: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "way", "file")); err != nil {
		t.Error(err)
	}
}

// Every image of the corpus can be written, and keeps its regular files.
func TestCorpus(t *testing.T) {
	layers, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	all := merged(t, layers...)
	dir, _, err := write(t, t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(id uint64, name string)
	files := 0
	walk = func(id uint64, name string) {
		there, err := all.Dir(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range there.Entries {
			n, err := all.Child(there, e)
			if err != nil {
				t.Fatal(err)
			}
			full := filepath.Join(name, e.Name)
			switch {
			case n.IsDir():
				walk(n.ID, full)
			case n.Mode&erofs.TypeMask == erofs.TypeRegular:
				want := make([]byte, n.Size)
				if _, err := all.ReadAt(n, want, 0); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(filepath.Join(dir, full)); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s has %d bytes, not %d, or others: %v", full, len(got), len(want), err)
				}
				files++
			}
		}
	}
	walk(tree.RootID, "")
	if files == 0 {
		t.Error("the corpus has no files")
	}
}

func TestStopped(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("stopped"))
	_, _, err := write(t, ctx, merged(t, pack(t, entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644}})))
	if err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Error(err)
	}
}

func TestTooDeepNesting(t *testing.T) {
	_, _, err := write(t, t.Context(), merged(t, pack(t, entry{Header: tar.Header{Name: strings.Repeat("d/", maxDepth+1), Typeflag: tar.TypeDir, Mode: 0o755}})))
	if err == nil || !strings.Contains(err.Error(), "directories in each other") {
		t.Error(err)
	}
}

func open(t *testing.T, file []byte) *tree.Tree {
	t.Helper()
	image, err := erofs.Open(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := tree.New([]*erofs.Image{image})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A directory of a malformed image may have two names. 300 such directories in each other
// would have more paths than any folder holds.
func TestDirectoryWithTwoNamesIsRefused(t *testing.T) {
	if _, _, err := write(t, t.Context(), open(t, corpus.NestedTwice(8))); !errors.Is(err, erofs.ErrCorrupt) {
		t.Errorf("it is written: %v", err)
	}
}

// The files that are written count against the budget of the image.
func TestFilesHaveABudget(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	most := budget.Budget{}.Layer(0)
	if err := most.Content(4 << 30); err != nil {
		t.Fatal(err)
	}
	image := merged(t, pack(t, entry{tar.Header{Name: "file", Mode: 0o644}, "content"}))
	if _, err := Write(t.Context(), image, root, most, func(int) {}); !errors.Is(err, budget.ErrExceeded) {
		t.Errorf("a file beyond the budget: %v", err)
	}
}
