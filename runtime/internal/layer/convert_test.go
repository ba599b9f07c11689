package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

func convert(t testing.TB, archive []byte) (*erofs.Image, error) {
	file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := Convert(bytes.NewReader(archive), file, budget.Budget{}.Layer(0)); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Open(file, info.Size())
	if err != nil {
		t.Fatalf("open what was written: %v", err)
	}
	return image, nil
}

func pack(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRootCannotBeEscaped(t *testing.T) {
	image, err := convert(t, pack(t,
		tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "../../../.."},
		tar.Header{Name: "up/a", Typeflag: tar.TypeReg},
		tar.Header{Name: "/../b/../../c", Typeflag: tar.TypeReg},
		tar.Header{Name: "to", Typeflag: tar.TypeSymlink, Linkname: "/d/./e"},
		tar.Header{Name: "to/f", Typeflag: tar.TypeReg},
	))
	if err != nil {
		t.Fatal(err)
	}
	root, err := image.Inode(erofs.Root)
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := image.Directory(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	if got := strings.Join(names, " "); got != "a c d to up" {
		t.Errorf("the root has %q", got)
	}
}

// A directory that has an entry counts once.
func TestManyDirectoriesFit(t *testing.T) {
	var headers []tar.Header
	for i := range 60_000 {
		headers = append(headers, tar.Header{Name: fmt.Sprintf("%02x/%04x/", i>>8, i), Typeflag: tar.TypeDir})
	}
	if _, err := convert(t, pack(t, headers...)); err != nil {
		t.Error(err)
	}
}

// longRecords returns the beginning of a header with records of a gigabyte.
func longRecords(t *testing.T) []byte {
	header := pack(t, tar.Header{Name: "a", Typeflag: tar.TypeReg})[:512]
	header[156] = tar.TypeXHeader
	copy(header[124:], "10000000000\x00") // the size, in octal
	sum := 8 * ' '
	for i, b := range header {
		if i < 148 || i >= 156 {
			sum += int32(b)
		}
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(header, bytes.Repeat([]byte("a"), 2<<20)...)
}

func TestBadLayers(t *testing.T) {
	deep := strings.Repeat("d/", maxDepth-40)
	whole := pack(t, tar.Header{Name: "a", Typeflag: tar.TypeReg})
	for what, c := range map[string]struct {
		archive []byte
		reason  string
	}{
		"a circle of links":         {pack(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "b"}, tar.Header{Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a"}, tar.Header{Name: "a/c", Typeflag: tar.TypeReg}), "is not a directory"},
		"a file below a file":       {pack(t, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "a/b", Typeflag: tar.TypeReg}), "is not a directory"},
		"a link to a directory":     {pack(t, tar.Header{Name: "b/", Typeflag: tar.TypeDir}, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "b"}), "is a directory"},
		"a root that is a file":     {pack(t, tar.Header{Name: ".", Typeflag: tar.TypeReg}), "root"},
		"directories without end":   {pack(t, tar.Header{Name: deep, Typeflag: tar.TypeDir, Format: tar.FormatPAX}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: deep, Format: tar.FormatPAX}, tar.Header{Name: "l/" + strings.Repeat("d/", 50) + "x", Typeflag: tar.TypeReg}), "directories in each other"},
		"a path that is too long":   {pack(t, tar.Header{Name: strings.Repeat("d/", 2048) + "x", Typeflag: tar.TypeReg, Format: tar.FormatPAX}), "4096 bytes of a path"},
		"a name that is too long":   {pack(t, tar.Header{Name: strings.Repeat("n", 256), Typeflag: tar.TypeReg, Format: tar.FormatPAX}), "not a file name"},
		"an impossible owner":       {pack(t, tar.Header{Name: "a", Uid: 1 << 33, Typeflag: tar.TypeReg, Format: tar.FormatPAX}), "impossible"},
		"a type that nobody knows":  {pack(t, tar.Header{Name: "a", Typeflag: 'Z'}), "unknown type"},
		"whiteout of the directory": {pack(t, tar.Header{Name: "a/.wh..", Typeflag: tar.TypeReg}), "not a file name"},
		"records of a gigabyte":     {longRecords(t), "more than 1 MiB"},
		"an archive that is cut":    {whole[:300], "unexpected EOF"},
		"no archive":                {bytes.Repeat([]byte("hello"), 300), "archive"},
	} {
		if _, err := convert(t, c.archive); err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v, want an error with %q", what, err, c.reason)
		}
	}
}

// FuzzConvert makes images of archives that anybody may have written, and reads
// them.
func FuzzConvert(f *testing.F) {
	archives, err := corpus.Layers()
	if err != nil {
		f.Fatal(err)
	}
	for _, a := range archives { // small ones, so that many can be tried
		f.Add(a[:min(len(a), 12<<10)])
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		fuzzbound.Watch(t)
		image, err := convert(t, archive)
		if err != nil {
			return
		}
		var walk func(number uint64, depth int)
		walk = func(number uint64, depth int) {
			n, err := image.Inode(number)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := image.Xattrs(n); err != nil {
				t.Fatal(err)
			}
			if n.Mode&erofs.TypeMask == erofs.TypeRegular {
				if _, err := image.ReadAt(n, make([]byte, min(n.Size, 1<<20)), 0); err != nil {
					t.Fatal(err)
				}
			}
			if !n.IsDir() {
				return
			}
			entries, _, err := image.Directory(n)
			if err != nil || depth > maxDepth {
				t.Fatalf("depth %d: %v", depth, err)
			}
			for _, e := range entries {
				walk(e.Number, depth+1)
			}
		}
		walk(erofs.Root, 0)
	})
}
