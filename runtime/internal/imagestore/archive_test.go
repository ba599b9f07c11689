package imagestore

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
)

func TestParseArchive(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "a=b.tar")
	if err := os.WriteFile(odd, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]Archive{
		"x.tar":                             {Path: "x.tar"},
		"busybox=x.tar":                     {Name: "docker.io/library/busybox:latest", Path: "x.tar"},
		"reg.test:5000/a/b:1=/data/x=y.tar": {Name: "reg.test:5000/a/b:1", Path: "/data/x=y.tar"},
		odd:                                 {Path: odd},
	} {
		if got, err := ParseArchive(arg); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", arg, got, err, want)
		}
	}
	for _, arg := range []string{"Not A Name=x.tar", "=x.tar"} {
		if got, err := ParseArchive(arg); err == nil {
			t.Errorf("%q: %+v, want an error", arg, got)
		}
	}
}

func TestImageName(t *testing.T) {
	for _, c := range []struct {
		archive     Archive
		annotations map[string]string
		want        string
		named       bool
	}{
		{Archive{Name: "reg.test/x:2"}, map[string]string{images.AnnotationImageName: "docker.io/library/y:1"}, "reg.test/x:2", true},
		{Archive{Path: "z.tar"}, map[string]string{images.AnnotationImageName: "docker.io/library/y:1"}, "docker.io/library/y:1", true},
		{Archive{Path: "z.tar"}, map[string]string{ocispec.AnnotationRefName: "y:1"}, "docker.io/library/y:1", true},
		{Archive{Path: "/data/My-App.tar.gz"}, map[string]string{ocispec.AnnotationRefName: "v2"}, "docker.io/library/my-app:v2", true},
		{Archive{Path: "/data/train.tar.zst"}, nil, "docker.io/library/train:latest", false},
	} {
		got, named, err := c.archive.imageName(c.annotations)
		if err != nil || got != c.want || named != c.named {
			t.Errorf("%+v %v: %q %v, %v; want %q", c.archive, c.annotations, got, named, err, c.want)
		}
	}
	if got, _, err := (Archive{Path: "/data/@@@.tar"}).imageName(nil); err == nil {
		t.Errorf("a file without a usable name: %q", got)
	}
}

func TestDecompress(t *testing.T) {
	text := bytes.Repeat([]byte("layers and layers "), 1000)
	var zipped, zstandard bytes.Buffer
	g := gzip.NewWriter(&zipped)
	g.Write(text)
	g.Close()
	z, err := zstd.NewWriter(&zstandard)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(text)
	z.Close()
	for name, packed := range map[string][]byte{"plain": text, "gzip": zipped.Bytes(), "zstd": zstandard.Bytes(), "tiny": text[:2]} {
		r, err := Decompress(bytes.NewReader(packed), budget.Budget{}.Layer(0))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.HasPrefix(text, got) || len(got) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		r.Close()
	}
	if _, err := Decompress(bytes.NewReader(nil), budget.Budget{}.Layer(0)); err == nil {
		t.Error("an empty file: no error")
	}
}
