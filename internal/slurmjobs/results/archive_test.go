package results

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fill writes files into a folder. A name that ends with / is a folder, and a text that begins with
// -> is the target of a link.
func fill(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(folder, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o700)
		} else if target, isLink := strings.CutPrefix(text, "->"); isLink {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o640))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the files of an archive. Folders have an empty text.
func read(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Typeflag != tar.TypeReg && header.Typeflag != tar.TypeDir {
			t.Errorf("got %+v", header)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

func source(root, path string) Source {
	return Source{Path: filepath.Join(root, path), Roots: []string{root}, Limits: Limits{Bytes: 1000, Files: 10}}
}

func TestArchive(t *testing.T) {
	root := t.TempDir()
	long := strings.Repeat("long/", 30) + "ü" // does not fit into the header of a tar archive
	fill(t, root, map[string]string{"out/a": "hello", "out/empty/": "", "out/" + long: "x", "latest": "->out", "out/link": "->a", "cow.out": "moo"})
	if err := unix.Mkfifo(filepath.Join(root, "out/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	s := source(root, "latest")
	s.Files = 100
	summary, err := s.Write(t.Context(), &archive)
	if err != nil || summary.LeftOut != 2 || summary.Bytes != 6 {
		t.Errorf("got %+v, %v", summary, err)
	}
	files := read(t, archive.Bytes())
	if files["latest/a"] != "hello" || files["latest/"+long] != "x" || len(files) != summary.Files {
		t.Errorf("got %q", files)
	}
	if _, found := files["latest/empty/"]; !found {
		t.Errorf("no empty folder in %q", files)
	}
	archive.Reset()
	if _, err := source(root, "cow.out").Write(t.Context(), &archive); err != nil {
		t.Error(err)
	}
	if files := read(t, archive.Bytes()); files["cow.out"] != "moo" || len(files) != 1 {
		t.Errorf("got %q", files)
	}
}

// TestAttacks: results that lead out of the roots, or that would never end, are refused. Another
// attempt does not help.
func TestAttacks(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	fill(t, outside, map[string]string{"secret": "secret"})
	fill(t, root, map[string]string{"in/a": "a", "link": "->" + outside + "/secret", "folder": "->" + outside, "many/1": "", "many/2": "", "many/3": "", "big/a": "123456", "big/b": "123456"})
	fill(t, root, map[string]string{"deep/" + strings.Repeat("d/", maxDepth+1): ""})
	if err := unix.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(root, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sparse.Truncate(1<<40), sparse.Close()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"in/../../" + filepath.Base(outside) + "/secret": "",
		"link":          "outside the folders for results",
		"folder":        "outside the folders for results",
		"folder/secret": "outside the folders for results",
		"pipe":          "neither a folder nor a regular file",
		"sparse":        "larger than 10 bytes",
		"big":           "larger than 10 bytes",
		"many":          "more than 3 files",
		"deep":          "deeper than 100 folders",
	} {
		s := source(root, path)
		s.Limits = Limits{Bytes: 10, Files: 3}
		if path == "deep" {
			s.Files = 1000
		}
		var archive bytes.Buffer
		_, err := s.Write(t.Context(), &archive)
		final := new(Final)
		if err == nil || !errors.As(err, &final) && want != "" || !strings.Contains(err.Error(), want) || strings.Contains(archive.String(), "secret") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	device := Source{Path: "/dev/zero", Roots: []string{"/dev"}, Limits: DefaultLimits()}
	if _, err := device.Write(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "neither a folder nor a regular file") {
		t.Error(err)
	}
	if _, err := source(root, "none").Write(t.Context(), io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// hook calls a function before the first write.
type hook struct {
	io.Writer
	first func()
}

func (h *hook) Write(text []byte) (int, error) {
	if h.first != nil {
		h.first()
		h.first = nil
	}
	return h.Writer.Write(text)
}

// TestChangesDuringTheWalk: a file that grows is collected with its first length, one that shrinks
// is an error, and links that replace files or folders are left out.
func TestChangesDuringTheWalk(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	fill(t, outside, map[string]string{"secret": "secret"})
	fill(t, root, map[string]string{"grows": "1234", "shrinks": "1234", "out/a/b": "b", "out/c": "c"})
	write := func(path string, first func()) (map[string]string, error) {
		var archive bytes.Buffer
		if _, err := source(root, path).Write(t.Context(), &hook{&archive, first}); err != nil {
			return nil, err
		}
		return read(t, archive.Bytes()), nil
	}
	grown := func() { fill(t, root, map[string]string{"grows": "123456789"}) }
	if files, err := write("grows", grown); err != nil || files["grows"] != "1234" {
		t.Errorf("got %q, %v", files, err)
	}
	shrunk := func() { fill(t, root, map[string]string{"shrinks": "1"}) }
	if _, err := write("shrinks", shrunk); err == nil || !strings.Contains(err.Error(), "became shorter") {
		t.Error(err)
	}
	swapped := func() {
		if err := errors.Join(os.RemoveAll(filepath.Join(root, "out/a")), os.Remove(filepath.Join(root, "out/c"))); err != nil {
			t.Error(err)
		}
		fill(t, root, map[string]string{"out/a": "->" + outside, "out/c": "->" + outside + "/secret"})
	}
	if files, err := write("out", swapped); err != nil || len(files) != 1 {
		t.Errorf("got %q, %v", files, err)
	}
}

// TestLinksAreNotFollowed: a link that replaced a file after the look at it is not opened.
func TestLinksAreNotFollowed(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	fill(t, outside, map[string]string{"secret": "secret"})
	fill(t, root, map[string]string{"inside": "", "in": "->inside", "out": "->" + outside + "/secret", "folder": "->" + outside, "up": "->../" + filepath.Base(outside)})
	folder, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	for _, name := range []string{"in", "out", "folder", "up"} {
		if file, err := openEntry(folder, name, name); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: got %v, %v", name, file, err)
		}
	}
	for _, name := range []string{"out", "folder/secret", "up/secret", "../" + filepath.Base(outside) + "/secret"} {
		if file, err := openBelow(root, name); err == nil {
			t.Errorf("%s: got %v", name, file)
		}
	}
	if file, err := openBelow(root, "in"); err != nil {
		t.Error(err)
	} else {
		file.Close()
	}
}

// TestSwaps archives a folder again and again while its entries change between files, folders and
// links that lead out of it.
func TestSwaps(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	fill(t, outside, map[string]string{"a": "secret"})
	fill(t, root, map[string]string{"out/d/a": "own", "other/d": "->" + outside, "out/f": "own", "other/f": "->" + outside + "/a"})
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, name := range []string{"d", "f"} {
				err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, "out", name), unix.AT_FDCWD, filepath.Join(root, "other", name), unix.RENAME_EXCHANGE)
				if err != nil {
					t.Error(err)
					return
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 200 {
		for _, path := range []string{"out", "out/d", "out/d/a", "out/f"} {
			var archive bytes.Buffer
			_, err := source(root, path).Write(t.Context(), &archive)
			if strings.Contains(archive.String(), "secret") {
				t.Errorf("%s: read a file outside, %v", path, err)
			}
		}
	}
	close(stop)
	<-done
}

func TestArchiveEndsWithTheContext(t *testing.T) {
	root := t.TempDir()
	fill(t, root, map[string]string{"a": "a"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	if _, err := source(root, "a").Write(ctx, io.Discard); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// TestFilesOfOthers: files of other users are left out, although this user may read them.
func TestFilesOfOthers(t *testing.T) {
	root := t.TempDir()
	fill(t, root, map[string]string{"out/a": "a"})
	a := &archive{uid: uint32(os.Getuid()) + 1}
	folder, err := os.Open(filepath.Join(root, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	info, err := stat(folder)
	if err != nil || !a.wanted(info) {
		t.Errorf("folder: %v", err)
	}
	if err := a.addEntry(folder, "a", "out/a", 1); err != nil || a.LeftOut != 1 {
		t.Errorf("got %+v, %v", a.Summary, err)
	}
}
