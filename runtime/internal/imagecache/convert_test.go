package imagecache

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/imagestore"
)

// pulledImage returns a populator with an image named pullFrom.
func pulledImage(t *testing.T) (*Populator, string) {
	t.Helper()
	_, server := serve(t, func(_ *registry, i *image) {
		i.config.Config.Env = []string{"A=b"}
		i.manifest.Layers = append(i.manifest.Layers, i.layer) // one layer twice
		i.config.RootFS.DiffIDs = append(i.config.RootFS.DiffIDs, i.config.RootFS.DiffIDs[0])
	})
	p, dir := newPopulator(t, 1<<30)
	if _, err := p.pullFrom(t, server, nil); err != nil {
		t.Fatal(err)
	}
	return p, dir
}

// inArchive returns the files of an archive and its only manifest.
func inArchive(t *testing.T, path string) (files map[string][]byte, manifest ocispec.Manifest) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	files = map[string][]byte{}
	r := tar.NewReader(file)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index ocispec.Index
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index %s: %v", files["index.json"], err)
	}
	if err := json.Unmarshal(files[blobName(index.Manifests[0].Digest)], &manifest); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if d, is := strings.CutPrefix(name, "blobs/sha256/"); is && digest.FromBytes(content).Encoded() != d {
			t.Errorf("%s has another digest", name)
		}
	}
	return files, manifest
}

func TestConvertToEStargz(t *testing.T) {
	p, dir := pulledImage(t)
	var came, total int64
	p.Progress = func(more, of int64) { came, total = came+more, of }
	path := filepath.Join(t.TempDir(), "app.tar")
	converted, err := p.Convert(t.Context(), "reg.test/team/app:1", EStargz, path)
	if err != nil || len(converted) != 1 || converted[0].Name != "reg.test/team/app:1" || converted[0].Layers != 2 {
		t.Fatalf("%+v, %v", converted, err)
	}
	if came != total || total == 0 {
		t.Errorf("%d of %d bytes were told", came, total)
	}
	files, manifest := inArchive(t, path)
	desc := manifest.Layers[0]
	if desc.MediaType != ocispec.MediaTypeImageLayerGzip || desc.Digest != manifest.Layers[1].Digest {
		t.Errorf("layers %+v", manifest.Layers)
	}
	blob := files[blobName(desc.Digest)]
	r, err := estargz.Open(io.NewSectionReader(bytes.NewReader(blob), 0, int64(len(blob))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.VerifyTOC(digest.Digest(desc.Annotations[estargz.TOCJSONDigestAnnotation])); err != nil {
		t.Error(err)
	}
	content, err := r.OpenFile("file")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(content)
	if err != nil || !bytes.Equal(text, bytes.Repeat([]byte("content of a file, "), 20000)) {
		t.Errorf("it has %d bytes, %v", len(text), err)
	}
	archive, err := imagestore.Decompress(bytes.NewReader(blob), budget.Budget{}.Layer(0))
	if err != nil {
		t.Fatal(err)
	}
	if size, err := io.Copy(io.Discard, archive); err != nil || fmt.Sprint(size) != desc.Annotations[estargz.StoreUncompressedSizeAnnotation] {
		t.Errorf("%d bytes without compression, %v; annotated as %v", size, err, desc.Annotations)
	}
	// The result is an ordinary image, and can be converted again.
	other, _ := newPopulator(t, 1<<30)
	images, err := other.Import(t.Context(), imagestore.Archive{Path: path})
	if err != nil || len(images) != 1 {
		t.Fatalf("%+v, %v", images, err)
	}
	if text, err := configuration(other.Cache, images[0]); err != nil || !bytes.Contains(text, []byte(`"Env":["A=b"]`)) {
		t.Errorf("configuration %s, %v", text, err)
	}
	if _, err := other.Convert(t.Context(), path, EStargz, path); err != nil {
		t.Error(err)
	}
	if rest := left(t, dir); len(rest) > 0 {
		t.Errorf("left %v", rest)
	}
}

// If only the compression of a layer changed, its uncompressed digest stays, and
// caches recognise it.
func TestConvertKeepsArchiveLayers(t *testing.T) {
	p, dir := pulledImage(t)
	plain, packed := filepath.Join(t.TempDir(), "app.tar"), filepath.Join(t.TempDir(), "zstd.tar")
	image, err := p.Named("reg.test/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Export(t.Context(), image, plain); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Convert(t.Context(), "other/name:2="+plain, Zstd, packed); err != nil {
		t.Fatal(err)
	}
	before, _ := inArchive(t, plain)
	after, manifest := inArchive(t, packed)
	if manifest.Layers[0].MediaType != ocispec.MediaTypeImageLayerZstd || manifest.Layers[0].Size >= int64(len(before[blobName(manifest.Layers[0].Digest)]))+1e6 {
		t.Errorf("layers %+v", manifest.Layers)
	}
	var config ocispec.Image
	if err := json.Unmarshal(after[blobName(manifest.Config.Digest)], &config); err != nil {
		t.Fatal(err)
	}
	if _, there := before[blobName(config.RootFS.DiffIDs[0])]; !there {
		t.Errorf("layer %s is another one", config.RootFS.DiffIDs[0])
	}
	if images, err := p.Import(t.Context(), imagestore.Archive{Path: packed}); err != nil || images[0].Name != "docker.io/other/name:2" {
		t.Errorf("%+v, %v", images, err)
	}
	if rest := left(t, dir); len(rest) > 0 {
		t.Errorf("left %v", rest)
	}
}

// Small files share streams, none of them much longer than necessary.
func TestSmallFilesShareAStream(t *testing.T) {
	files := map[string][]byte{}
	const each = 4000
	for i := range 200 {
		files[fmt.Sprintf("file%03d", i)] = corpus.Noise(uint64(i), each)
	}
	var blob bytes.Buffer
	archive := corpus.Pack(t, files)
	_, _, err := packEStargz(&blob, func(to io.Writer) error {
		_, err := to.Write(archive)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := estargz.Open(io.NewSectionReader(bytes.NewReader(blob.Bytes()), 0, int64(blob.Len())))
	if err != nil {
		t.Fatal(err)
	}
	streams := map[int64]bool{}
	for name, want := range files {
		e, _ := r.Lookup(name)
		streams[e.Offset] = true
		content := make([]byte, len(want))
		if file, err := r.OpenFile(name); err != nil {
			t.Error(err)
		} else if _, err := file.ReadAt(content, 0); err != nil || !bytes.Equal(content, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	begins := slices.Sorted(maps.Keys(streams))
	for i := range begins[1:] {
		if size := begins[i+1] - begins[i]; size < leastStream || size > leastStream+2*each {
			t.Errorf("a stream of %d bytes for files of %d", size, each)
		}
	}
	if least := len(files) * each / leastStream / 2; len(begins) < least {
		t.Errorf("%d streams, want %d at least", len(begins), least)
	}
}

// Converted layers contain the same files, for all kinds of layers.
func TestEStargzHasSameContent(t *testing.T) {
	layers, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for i, archive := range layers {
		var blob bytes.Buffer
		id, annotations, err := packEStargz(&blob, func(to io.Writer) error {
			_, err := io.Copy(to, bytes.NewReader(archive))
			return err
		})
		if err != nil {
			t.Errorf("layer %d: %v", i, err)
			continue
		}
		unpacked, err := imagestore.Decompress(&blob, budget.Budget{}.Layer(0))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(unpacked)
		if err != nil || digest.FromBytes(text) != id || fmt.Sprint(len(text)) != annotations[estargz.StoreUncompressedSizeAnnotation] {
			t.Errorf("layer %d: %d bytes, %v, %v", i, len(text), annotations, err)
		}
		got, want := entries(t, text), entries(t, archive)
		got = slices.DeleteFunc(got, func(line string) bool { return strings.HasPrefix(line, estargz.TOCTarName+" ") })
		if !slices.Equal(got, want) {
			t.Errorf("layer %d:\n%s", i, corpus.Difference(got, want))
		}
	}
}

func entries(t *testing.T, archive []byte) (lines []string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprint(h.Name, " ", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.Devmajor, h.Devminor, h.ModTime.UnixNano(), h.PAXRecords, digest.FromBytes(content)))
	}
}

func TestConvertRefuses(t *testing.T) {
	p, cache := pulledImage(t)
	place := t.TempDir()
	target := filepath.Join(place, "out.tar")
	plain := filepath.Join(t.TempDir(), "app.tar")
	image, err := p.Named("reg.test/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Export(t.Context(), image, plain); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.tar")
	change := slices.Clone(good)
	change[bytes.Index(change, []byte("content of a file"))] ^= 1
	cut := filepath.Join(t.TempDir(), "cut.tar")
	if err := errors.Join(os.WriteFile(broken, change, 0o600), os.WriteFile(cut, good[:len(good)/2], 0o600)); err != nil {
		t.Fatal(err)
	}
	// No earlier step has verified the content of a folder.
	layout := t.TempDir()
	files, manifest := inArchive(t, plain)
	files[blobName(manifest.Layers[0].Digest)][600] ^= 1
	for name, content := range files {
		path := filepath.Join(layout, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("stopped"))
	for _, c := range []struct {
		ctx                  context.Context
		source, target, want string
	}{
		{t.Context(), "nothing:1", target, "nor is there an archive of that name"},
		{t.Context(), "No Name", target, "which is not an archive either"},
		{t.Context(), "./nothing", target, "no such file"},
		{t.Context(), place, target, "as an OCI layout"},
		{t.Context(), "a:1=" + filepath.Join(place, "nothing.tar"), target, "no such file"},
		{t.Context(), "reg.test/team/app:1", filepath.Join(place, "no", "out.tar"), "no such file"},
		{t.Context(), "reg.test/team/app:1", place, "is not a file"},
		{t.Context(), broken, target, "its content has another digest"},
		{t.Context(), layout, target, "has another digest"},
		{t.Context(), cut, target, "unexpected EOF"},
		{stopped, "reg.test/team/app:1", target, "stopped"},
	} {
		for _, form := range []Form{EStargz, Zstd} {
			converted, err := p.Convert(c.ctx, c.source, form, c.target)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(converted) > 0 {
				t.Errorf("%s of %s to %s: %+v, %v; want an error with %q", form, c.source, c.target, converted, err, c.want)
			}
		}
		if files, err := os.ReadDir(place); err != nil || len(files) > 0 {
			t.Errorf("%s to %s left %v, %v", c.source, c.target, files, err)
		}
	}
	if rest := left(t, cache); len(rest) > 0 {
		t.Errorf("left %v", rest)
	}
	p.Chosen, p.Platform.Architecture = true, "arm64"
	if _, err := p.Convert(t.Context(), "reg.test/team/app:1", Zstd, target); err == nil || !strings.Contains(err.Error(), "it is for linux/amd64, not for linux/arm64") {
		t.Errorf("for another platform: %v", err)
	}
	if _, err := ParseForm("gzip"); err == nil {
		t.Error("gzip is no form to convert to")
	}
}

// A manifest in a folder must match its digest.
func TestConvertChecksManifests(t *testing.T) {
	p, _ := pulledImage(t)
	plain := filepath.Join(t.TempDir(), "app.tar")
	image, err := p.Named("reg.test/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Export(t.Context(), image, plain); err != nil {
		t.Fatal(err)
	}
	files, _ := inArchive(t, plain)
	var index ocispec.Index
	if err := json.Unmarshal(files[ocispec.ImageIndexFile], &index); err != nil {
		t.Fatal(err)
	}
	name := blobName(index.Manifests[0].Digest)
	for what, content := range map[string][]byte{"another": append(slices.Clone(files[name]), ' '), "a huge one": make([]byte, p.Budget.Text()+1)} {
		layout := t.TempDir()
		files[name] = content
		for name, content := range files {
			path := filepath.Join(layout, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Convert(t.Context(), layout, Zstd, filepath.Join(t.TempDir(), "out.tar")); err == nil {
			t.Errorf("%s manifest was taken", what)
		} else {
			t.Log(err)
		}
	}
}

// A new file's mode follows the umask; a replaced file keeps its mode.
func TestModesOfArchives(t *testing.T) {
	p, _ := pulledImage(t)
	probe, err := os.OpenFile(filepath.Join(t.TempDir(), "probe"), os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	usual, err := probe.Stat()
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "out.tar")
	for _, want := range []os.FileMode{usual.Mode(), 0o600, 0o664} {
		if want != usual.Mode() {
			if err := os.Chmod(target, want); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Convert(t.Context(), "reg.test/team/app:1", Zstd, target); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(target); err != nil || info.Mode() != want {
			t.Errorf("%v, %v; want %v", info.Mode(), err, want)
		}
	}
}

// A full disk is reported as the cause, regardless of the packer.
func TestFullDiskIsReported(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	layers, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	archive := slices.MaxFunc(layers, func(a, b []byte) int { return len(a) - len(b) })
	for _, form := range []Form{Plain, EStargz, Zstd} {
		p := packer{ctx: t.Context(), form: form, to: newArchiveWriter(full), progress: func(int64, int64) {}}
		_, err := p.layer(unpacked{size: int64(len(archive)), write: func(_ context.Context, to io.Writer, count func(int)) error {
			_, err := io.Copy(countedWriter{to, count}, bytes.NewReader(archive))
			return err
		}})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// A configuration keeps unknown fields.
func TestConfigurationOfOtherLayers(t *testing.T) {
	text, err := withLayers([]byte(`{"os":"linux","config":{"Healthcheck":{"Test":["x"]}},"rootfs":{"type":"layers","diff_ids":["sha256:0"]}}`), []digest.Digest{"sha256:1"})
	if want := `{"config":{"Healthcheck":{"Test":["x"]}},"os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:1"]}}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	for _, bad := range []string{"", "null", "[]"} {
		if text, err := withLayers([]byte(bad), nil); err == nil {
			t.Errorf("%q became %s", bad, text)
		}
	}
}
