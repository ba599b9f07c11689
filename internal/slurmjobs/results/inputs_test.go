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

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// pack returns an archive of headers. Regular files contain their names.
func pack(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, header := range headers {
		if header.Typeflag == tar.TypeReg {
			header.Size = int64(len(header.Name))
		}
		if header.Mode == 0 {
			header.Mode = 0o644
		}
		err := writer.WriteHeader(&header)
		if err == nil && header.Typeflag == tar.TypeReg {
			_, err = io.WriteString(writer, header.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }

func unpack(t testing.TB, root, path string, archive []byte) (Summary, error) {
	return Destination{root, path, DefaultLimits()}.Unpack(t.Context(), bytes.NewReader(archive))
}

// Files of a second archive replace the files of the first one. Links are left out.
func TestUnpack(t *testing.T) {
	root := t.TempDir()
	first := pack(t, tar.Header{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o555}, file("data/a"), tar.Header{Typeflag: tar.TypeReg, Name: "data/b/c", Mode: 0o4755},
		tar.Header{Typeflag: tar.TypeLink, Name: "data/d", Linkname: "data/a"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "data/e", Linkname: "/etc"},
		tar.Header{Typeflag: tar.TypeFifo, Name: "data/f"})
	for range 2 {
		summary, err := unpack(t, root, "in/puts", first)
		if want := (Summary{Files: 4, Bytes: 14, LeftOut: 2}); err != nil || summary != want {
			t.Errorf("got %+v, %v", summary, err)
		}
	}
	for name, want := range map[string]string{"a": "data/a", "b/c": "data/b/c", "d": "data/a"} {
		if text, err := os.ReadFile(filepath.Join(root, "in/puts/data", name)); err != nil || string(text) != want {
			t.Errorf("%s: got %q, %v", name, text, err)
		}
	}
	if info, err := os.Stat(filepath.Join(root, "in/puts/data/b/c")); err != nil || info.Mode() != 0o755 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(filepath.Join(root, "in/puts/data/e")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got a link, %v", err)
	}
}

// No archive writes to, or names, files outside of its folder, whatever links are there.
func TestUnpackStaysInItsFolder(t *testing.T) {
	outside := t.TempDir()
	fill(t, outside, map[string]string{"secret": "secret"})
	up := "../" + filepath.Base(outside)
	link := func(target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: "data/a", Linkname: target}
	}
	for name, test := range map[string]struct {
		files   map[string]string
		archive []byte
		want    string
	}{
		"up":                {nil, pack(t, file("../a")), `a file "../a" outside its folder`},
		"absolute":          {nil, pack(t, file("/a")), "outside its folder"},
		"up and down":       {nil, pack(t, file("data/../../a")), "outside its folder"},
		"hard link up":      {nil, pack(t, link("../../secret")), "path escapes"},
		"hard link":         {nil, pack(t, link(filepath.Join(outside, "secret"))), "path escapes"},
		"folder is a link":  {map[string]string{"in/data": "->" + outside}, pack(t, file("data/new")), "path escapes"},
		"folder leads up":   {map[string]string{"in/data": "->../" + up}, pack(t, file("data/new")), "path escapes"},
		"leaves its folder": {map[string]string{"other/": "", "in/data": "->../other"}, pack(t, file("data/new")), "path escapes"},
		"is a link":         {map[string]string{"in": "->" + outside}, pack(t, file("data/new")), "path escapes"},
		"a folder":          {map[string]string{"in/data/a/b": ""}, pack(t, file("data/a")), "directory not empty"},
	} {
		root := t.TempDir()
		fill(t, root, test.files)
		if _, err := unpack(t, root, "in", test.archive); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
			t.Errorf("%s: got %v, %v", name, entries, err)
		}
	}
	// A file that is a link is replaced.
	root := t.TempDir()
	fill(t, root, map[string]string{"in/data/a": "->" + outside + "/secret"})
	if _, err := unpack(t, root, "in", pack(t, file("data/a"))); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "secret" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestUnpackIncompleteOrLarge(t *testing.T) {
	archive := pack(t, file("data/a"), file("data/b"))
	if _, err := unpack(t, t.TempDir(), "in", archive[:515]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	for _, limits := range []Limits{{Bytes: 11, Files: 2}, {Bytes: 12, Files: 1}} {
		final := new(Final)
		_, err := Destination{t.TempDir(), "in", limits}.Unpack(t.Context(), bytes.NewReader(archive))
		if !errors.As(err, &final) || !strings.Contains(err.Error(), "there are more than") {
			t.Errorf("%+v: %v", limits, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	if _, err := (Destination{t.TempDir(), "in", DefaultLimits()}).Unpack(ctx, bytes.NewReader(archive)); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, file("data/a"), file("../b"), tar.Header{Typeflag: tar.TypeLink, Name: "data/c", Linkname: "data/a"}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		fuzzbound.Watch(t)
		above := t.TempDir()
		fill(t, above, map[string]string{"root/": ""})
		_, _ = Destination{filepath.Join(above, "root"), "in", Limits{Bytes: 1 << 20, Files: 100}}.Unpack(t.Context(), bytes.NewReader(archive))
		if entries, err := os.ReadDir(above); err != nil || len(entries) != 1 {
			t.Errorf("got %v, %v", entries, err)
		}
	})
}
