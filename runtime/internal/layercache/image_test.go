package layercache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/fuzzbound"
)

// name publishes layers and gives an image of them its name.
func name(t *testing.T, c *Cache, name string, layers ...string) Image {
	t.Helper()
	text := []byte("manifest of " + name)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(text), Size: int64(len(text))}
	if err := c.PutBlob(desc, text); err != nil {
		t.Fatal(err)
	}
	img := Image{Name: name, Target: desc, Blobs: []ocispec.Descriptor{desc}, Platform: "linux/amd64"}
	for _, content := range layers {
		d, path := image(t, content)
		if _, err := c.Publish(d, path); err != nil {
			t.Fatal(err)
		}
		img.Layers = append(img.Layers, d)
	}
	if err := c.Name(img); err != nil {
		t.Fatal(err)
	}
	return img
}

func TestNamesAreFoundAndRemoved(t *testing.T) {
	c, said := open(t, t.TempDir(), "job", 1<<30)
	one := name(t, c, "reg.test/a:1", "shared", "own")
	other := name(t, c, "docker.io/library/b:1", "shared")
	name(t, c, "reg.test/a:1", "shared", "own") // once more is the same

	all, err := c.Images()
	if err != nil || len(all) != 2 || all[0].Name != other.Name || all[1].Name != one.Name {
		t.Fatalf("images %v, %v", all, err)
	}
	got, err := c.Image(one.Name, amd64)
	if err != nil || got.Target.Digest != one.Target.Digest || len(got.Layers) != 2 {
		t.Errorf("found %+v, %v", got, err)
	}
	if text, err := c.Blob(one.Target.Digest); err != nil || string(text) != "manifest of reg.test/a:1" {
		t.Errorf("blob %q, %v", text, err)
	}
	if _, err := c.Image("nothing", amd64); !errors.Is(err, ErrNoImage) {
		t.Errorf("an unknown name: %v", err)
	}

	if err := c.Close(); err != nil { // as if no job used them
		t.Fatal(err)
	}
	if freed, err := c.Remove(one.Name, nil); err != nil || freed == 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if _, missing := c.Size(one); missing != 1 {
		t.Errorf("%d layers are gone; only its own is to be", missing)
	}
	if _, missing := c.Size(other); missing != 0 {
		t.Error("the removal took a layer of another image")
	}
	if _, err := c.Blob(one.Target.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its manifest is there: %v", err)
	}
	if _, err := c.Remove(one.Name, nil); !errors.Is(err, ErrNoImage) {
		t.Errorf("removed twice: %v", err)
	}
	if len(*said) > 0 {
		t.Errorf("said %v", *said)
	}
}

func TestTrimTakesLayersWithoutNamesFirst(t *testing.T) {
	dir := t.TempDir()
	c, _ := open(t, dir, "job", 1<<30)
	named := name(t, c, "reg.test/a:1", "named")
	nameless, path := image(t, "nameless")
	if _, err := c.Publish(nameless, path); err != nil {
		t.Fatal(err)
	}
	// The named one was used longer ago.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(c.path(named.Layers[0]), old, old); err != nil {
		t.Fatal(err)
	}
	size, _ := c.Size(named)
	c.limit = size
	if err := c.Close(); err != nil { // nothing is in use
		t.Fatal(err)
	}
	if err := c.Trim(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, missing := c.Size(named); missing > 0 {
		t.Error("the layer of an image with a name had to go first")
	}
	if _, err := os.Stat(c.path(nameless)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the nameless layer is there: %v", err)
	}
}

func TestNamedImagesStayWithoutLimit(t *testing.T) {
	dir := t.TempDir()
	c, _ := open(t, dir, "job", 1<<30)
	named := name(t, c, "reg.test/a:1", strings.Repeat("named", 9000))
	nameless, path := image(t, "nameless")
	if _, err := c.Publish(nameless, path); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // nothing is in use
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	run, _ := open(t, dir, "run", info.Size()*3/2) // one, and half of one
	run.KeepNamed = true
	other, path := image(t, "otherone")
	if own, err := run.Publish(other, path); err != nil || own == "" {
		t.Fatalf("what has a name counts: %q, %v", own, err)
	}
	if err := run.Trim(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, missing := run.Size(named); missing > 0 {
		t.Error("a layer of an image with a name went")
	}
	if _, err := os.Stat(run.path(nameless)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the nameless layer is there: %v", err)
	}
}

func TestDamagedTextsAreNotUsed(t *testing.T) {
	c, said := open(t, t.TempDir(), "job", 1<<30)
	img := name(t, c, "reg.test/a:1", "layer")
	blob := c.blobPath(img.Target.Digest)
	if err := errors.Join(os.Chmod(blob, 0o600), os.WriteFile(blob, []byte("something else"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Blob(img.Target.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a changed manifest: %v", err)
	}
	if len(*said) != 1 || !strings.Contains((*said)[0], "damaged") {
		t.Errorf("said %v", *said)
	}
	for _, text := range []string{"", "{", `{"name":"other"}`, `{"name":"reg.test/a:1","layers":["../../etc/passwd"]}`, `{"name":"reg.test/a:1","layers":["sha512:00"]}`} {
		record := c.record(img.Name, img.Platform)
		if err := errors.Join(os.Chmod(record, 0o600), os.WriteFile(record, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Image(img.Name, amd64); err == nil {
			t.Errorf("record %q: %+v", text, got)
		}
	}
	// A record that others may write to is not used either.
	if err := os.Chmod(c.record(img.Name, img.Platform), 0o622); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Images(); err == nil || !strings.Contains(err.Error(), "others may change it") {
		t.Errorf("a record that others may change: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"name":"a","target":{"digest":"sha256:0"},"layers":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		path := filepath.Join(t.TempDir(), "record")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := readRecord(path)
		if err != nil {
			return
		}
		c := folder{t.TempDir()}
		for _, file := range c.paths(img) {
			if !strings.HasPrefix(file, c.dir+"/") || strings.Contains(file, "..") {
				t.Errorf("a file outside of the cache: %s", file)
			}
		}
	})
}

var (
	amd64 = platforms.Only(ocispec.Platform{OS: "linux", Architecture: "amd64"})
	arm64 = platforms.Only(ocispec.Platform{OS: "linux", Architecture: "arm64"})
)

// An image of a name is kept for each platform.
func TestNamesIncludePlatform(t *testing.T) {
	c, _ := open(t, t.TempDir(), "job", 1<<30)
	one := name(t, c, "reg.test/a:1", "shared", "amd64")
	other := one
	other.Platform, other.Time = "linux/arm64", time.Now()
	d, path := image(t, "arm64")
	if _, err := c.Publish(d, path); err != nil {
		t.Fatal(err)
	}
	other.Layers = []digest.Digest{one.Layers[0], d}
	if err := c.Name(other); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Images(); err != nil || len(all) != 2 || all[0].Platform != "linux/amd64" || all[1].Platform != "linux/arm64" {
		t.Errorf("images %v, %v", all, err)
	}
	if all, err := c.OfName(one.Name); err != nil || len(all) != 2 || all[0].Platform != "linux/arm64" {
		t.Errorf("images of the name %v, %v; want the last one first", all, err)
	}
	if got, err := c.Image(one.Name, amd64); err != nil || got.Layers[1] != one.Layers[1] {
		t.Errorf("for amd64: %v, %v", got, err)
	}
	if got, err := c.Image(one.Name, arm64); err != nil || got.Layers[1] != other.Layers[1] {
		t.Errorf("for arm64: %v, %v", got, err)
	}
	if _, err := c.Image(one.Name, platforms.Only(ocispec.Platform{OS: "linux", Architecture: "s390x"})); !errors.Is(err, ErrNoImage) {
		t.Errorf("a platform that is not there: %v", err)
	}
	if err := c.Close(); err != nil { // as if no job used them
		t.Fatal(err)
	}
	if freed, err := c.Remove(one.Name, arm64); err != nil || freed == 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if _, err := c.Remove(one.Name, arm64); !errors.Is(err, ErrNoImage) {
		t.Errorf("removed twice: %v", err)
	}
	if _, missing := c.Size(one); missing > 0 {
		t.Error("the removal took a layer of another platform's")
	}
	if err := c.Name(other); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Remove(one.Name, nil); err != nil {
		t.Error(err)
	}
	if all, err := c.Images(); err != nil || len(all) > 0 {
		t.Errorf("left %v, %v", all, err)
	}
}

// A record from the time when a name had one platform is read, and removed when
// the image is pulled again.
func TestNamesOfOneFile(t *testing.T) {
	c, _ := open(t, t.TempDir(), "job", 1<<30)
	one := name(t, c, "reg.test/a:1", "amd64")
	if err := os.Rename(c.record(one.Name, one.Platform), c.record(one.Name, "")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Image(one.Name, amd64); err != nil || got.Platform != one.Platform {
		t.Errorf("%v, %v", got, err)
	}
	if err := c.Name(one); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Images(); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := os.Rename(c.record(one.Name, one.Platform), c.record(one.Name, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Remove(one.Name, nil); err != nil {
		t.Error(err)
	}
	if all, err := c.Images(); err != nil || len(all) > 0 {
		t.Errorf("left %v, %v", all, err)
	}
}

// A record that is damaged hides no other of its name, and goes when that is brought again.
func TestDamagedRecordOfAName(t *testing.T) {
	c, _ := open(t, t.TempDir(), "job", 1<<30)
	one := name(t, c, "reg.test/a:1", "amd64")
	if err := os.WriteFile(c.record(one.Name, ""), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Image(one.Name, amd64); err != nil || got.Platform != one.Platform {
		t.Errorf("%v, %v", got, err)
	}
	if err := c.Name(one); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Images(); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
