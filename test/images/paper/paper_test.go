package paper

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// tiny returns a shape whose images are made quickly.
func tiny(t *testing.T) Shape {
	t.Helper()
	python := filepath.Join(t.TempDir(), "python")
	for path, content := range map[string]string{
		"usr/bin/python3": "python", "usr/share/doc/python": "left out", libraries + "/dist-packages/m.py": "module", libraries + "/doc/m": "left out",
		"VERSIONS": "python 1",
	} {
		path = filepath.Join(python, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(python, "usr/bin/python3")
	return Shape{
		Seed: 1, Python: python, Busybox: program, First: program, Module: "m", Exclude: []string{"usr/share/doc", libraries + "/doc"},
		Size: 1 << 20, Layers: 2, Files: 9, ShardSize: 100, Versions: 3, Tiers: []Tier{{"small", 1}},
	}
}

// packed stands for a converter of images: it only makes an archive of the folder.
func packed(layout, archive string) (err error) {
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	writer := tar.NewWriter(file)
	return errors.Join(writer.AddFS(os.DirFS(layout)), writer.Close(), file.Close())
}

func index(t *testing.T, dir string) map[string]v1.Manifest {
	t.Helper()
	read := func(path string, into any) {
		content, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(content, into); err != nil {
			t.Fatal(err)
		}
	}
	var all v1.IndexManifest
	read("index.json", &all)
	images := map[string]v1.Manifest{}
	for _, d := range all.Manifests {
		var m v1.Manifest
		read("blobs/sha256/"+d.Digest.Hex, &m)
		images[d.Annotations[refName]] = m
	}
	return images
}

func TestWrite(t *testing.T) {
	s := tiny(t)
	dir := t.TempDir()
	if err := s.Write(dir, packed); err != nil {
		t.Fatal(err)
	}
	images := index(t, dir)
	if len(images) != 5 || len(images["lazy:small"].Layers) != 4 {
		t.Fatalf("images: %v", images)
	}
	if !slices.EqualFunc(images["lazy:small"].Layers, images["lazy:small-estargz"].Layers, func(a, b v1.Descriptor) bool { return a.Digest == b.Digest }) {
		t.Error("what the converter made is not what is there")
	}
	first, second := images["patch:v1"].Layers, images["patch:v2"].Layers
	if len(first) != 4+s.Layers {
		t.Fatalf("%d layers", len(first))
	}
	size := int64(0)
	for n := range first {
		size += first[n].Size
		if last := n == len(first)-1; (first[n].Digest == second[n].Digest) == last {
			t.Errorf("layer %d: the versions differ in their last layer, and in no other", n)
		}
		file, err := os.Open(filepath.Join(dir, "blobs/sha256", first[n].Digest.Hex))
		if err != nil {
			t.Fatal(err)
		}
		if digest, bytes, err := v1.SHA256(file); err != nil || digest != first[n].Digest || bytes != first[n].Size {
			t.Errorf("layer %d: %v, %d bytes, %v", n, digest, bytes, err)
		}
		_ = file.Close()
	}
	if off := size - s.Size; off < -s.Size/50 || off > s.Size/50 {
		t.Errorf("the image has %d bytes, want about %d", size, s.Size)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestSame checks that a shape always gives the same bytes, and another seed others.
func TestSame(t *testing.T) {
	s := tiny(t)
	s.Tiers, s.Size = nil, 0
	write := func(s Shape) (names []string) {
		dir := t.TempDir()
		if err := s.Write(dir, nil); err != nil {
			t.Fatal(err)
		}
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			names = append(names, strings.TrimPrefix(path, dir))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return names
	}
	key := func(s Shape) string {
		k, err := s.Key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	other := s
	other.Seed++
	if !slices.Equal(write(s), write(s)) || key(s) != key(s) {
		t.Error("the same shape, other bytes")
	}
	if slices.Equal(write(s), write(other)) || key(s) == key(other) {
		t.Error("another seed, the same bytes")
	}
}

func TestMistakes(t *testing.T) {
	for _, text := range []string{"", "small", "small=", "small=x", "small=0", "=4", "small=4,"} {
		if _, err := Tiers(text); err == nil {
			t.Errorf("%q is taken for tiers", text)
		}
	}
	if tiers, err := Tiers("a=1,b=20"); err != nil || !slices.Equal(tiers, []Tier{{"a", 1}, {"b", 20}}) {
		t.Errorf("%v, %v", tiers, err)
	}
	err := Shape{Python: "/nothing", Busybox: "/nothing", First: "/nothing"}.Write(t.TempDir(), nil)
	for _, want := range []string{"layer of shards", "a version", "module", "/nothing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	s := tiny(t)
	if err := s.Write(t.TempDir(), func(string, string) error { return errors.New("no converter") }); err == nil || !strings.Contains(err.Error(), "convert lazy:small: no converter") {
		t.Errorf("a converter that fails: %v", err)
	}
	if err := s.Write(t.TempDir(), func(_, archive string) error { return os.WriteFile(archive, nil, 0o644) }); err == nil || !strings.Contains(err.Error(), "no image") {
		t.Errorf("an archive without an image: %v", err)
	}
}
