package tools

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// archive writes the archive of an image with one layer.
func archive(t *testing.T, entries ...tar.Header) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, e := range entries {
		content := []byte(e.Name)
		if e.Typeflag == tar.TypeReg {
			e.Size = int64(len(content))
		}
		if err := w.WriteHeader(&e); err != nil {
			t.Fatal(err)
		}
		if e.Size > 0 {
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, v1.Layer(static.NewLayer(layer.Bytes(), types.DockerUncompressedLayer)))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("bench:1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(path, tag, image); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnpack(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const libraries = "usr/lib/x86_64-linux-gnu/"
	image := archive(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/fio", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: libraries + "ld-linux-x86-64.so.2", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: libraries + "ceph/libceph.so.2", Mode: 0o444},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin"},
		tar.Header{Typeflag: tar.TypeLink, Name: "usr/bin/again", Linkname: "usr/bin/fio"},
	)
	dir, err := Unpack(image)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Unpack(image); err != nil || again != dir {
		t.Errorf("the second time: %s, %v", again, err)
	}
	command, err := Command(dir, []string{"fio", "--version"})
	own := filepath.Join(dir, libraries)
	want := []string{own + "/ld-linux-x86-64.so.2", "--library-path", own + ":" + own + "/ceph", "--argv0", "fio", dir + "/usr/bin/fio", "--version"}
	if err != nil || !slices.Equal(command, want) {
		t.Errorf("got %q, %v; want %q", command, err, want)
	}
	if _, err := Command(dir, []string{"none"}); err == nil {
		t.Error("a program that the image does not have")
	}
	if err := Remove(image); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestEscape: an image writes only to its folder.
func TestEscape(t *testing.T) {
	for _, entries := range [][]tar.Header{
		{{Typeflag: tar.TypeSymlink, Name: "out", Linkname: ".."}, {Typeflag: tar.TypeReg, Name: "out/escaped", Mode: 0o644}},
		{{Typeflag: tar.TypeReg, Name: "../escaped", Mode: 0o644}},
	} {
		t.Setenv("TMPDIR", t.TempDir())
		// The library may refuse the archive or skip the entry.
		_, _ = Unpack(archive(t, entries...))
		if _, err := os.Lstat(filepath.Join(os.TempDir(), "escaped")); err == nil {
			t.Errorf("%s was written beside the folder", entries[len(entries)-1].Name)
		}
	}
}

// TestSomebodyElses: a folder of another user is not used.
func TestSomebodyElses(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	image := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "x", Mode: 0o644})
	dir, err := root(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(image); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Errorf("got %v", err)
	}
}
