package integration

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// busybox returns a program for an image, and its name there: the host's busybox if
// there is one, because it is small, or else this test program.
func busybox() (path, name string) {
	if path, err := exec.LookPath("busybox"); err == nil {
		return path, "busybox"
	}
	self, _ := os.Executable()
	return self, helperName
}

func TestImportArchives(t *testing.T) {
	n := startNode(t)
	program, name := busybox()
	plain := filepath.Join(n.scratch, "plain.tar")
	saveArchive(t, plain, "busybox:1.36", program, name)
	zipped := filepath.Join(n.scratch, "Zipped.tar.gz")
	saveArchive(t, zipped+".tmp", "", program, name)
	compress(t, zipped+".tmp", zipped)

	n.importImage(plain)
	if n.stored(programLayer(t, program, name)) {
		t.Error("a layer was copied that can be read where it lies")
	}
	var names []string
	for _, line := range n.importImage(plain, zipped, "reg.test/named:2="+plain) {
		names = append(names, line["name"].(string))
	}
	for _, want := range []string{"docker.io/library/busybox:1.36", "docker.io/library/zipped:latest", "reg.test/named:2"} {
		if !strings.Contains(strings.Join(names, " "), want) {
			t.Errorf("imported %v, want %s too", names, want)
		}
		answer, err := n.images.ImageStatus(testContext(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: want}})
		if err != nil || answer.Image == nil {
			t.Errorf("CRI does not know %s: %v", want, err)
		}
	}
	// Once more: what is there already is not an error.
	n.importImage(plain)

	// The blobs in the store match their names in all cases.
	blobs, _ := filepath.Glob(filepath.Join(n.scratch, "containerd/io.containerd.content.v1.content/blobs/sha256/*"))
	if len(blobs) == 0 {
		t.Error("no blobs")
	}
	left, _ := filepath.Glob(filepath.Join(n.scratch, "containerd/io.containerd.content.v1.content/berth-import-*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// stored reports whether containerd's store has a layer.
func (n *node) stored(layer []byte) bool {
	_, err := os.Stat(filepath.Join(n.scratch, "containerd/io.containerd.content.v1.content/blobs/sha256", fmt.Sprintf("%x", sha256.Sum256(layer))))
	return err == nil
}

func compress(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := gzip.NewWriter(out)
	if _, err := io.Copy(w, in); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestBadArchives(t *testing.T) {
	n := startNode(t)
	write := func(name, text string) string {
		path := filepath.Join(n.scratch, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := filepath.Join(n.scratch, "good.tar")
	program, name := busybox()
	saveArchive(t, good, "good:1", program, name)
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	// A layer that nobody has, with another byte in its file.
	saveArchive(t, filepath.Join(n.scratch, "own.tar"), "own:1", "/proc/self/status", "status")
	changed, err := os.ReadFile(filepath.Join(n.scratch, "own.tar"))
	if err != nil {
		t.Fatal(err)
	}
	changed[4*512+100] ^= 1
	for path, why := range map[string]string{
		filepath.Join(n.scratch, "missing.tar"):          "no such file",
		write("empty.tar", ""):                           "it is empty",
		write("text.tar", strings.Repeat("hello ", 900)): "docker save",
		write("cut.tar", string(whole[:len(whole)/2])):   "unexpected EOF",
		write("changed.tar", string(changed)):            "wrong diff id",
		write("bad.tar.gz", "\x1f\x8b\x08 nonsense"):     "bad.tar.gz",
	} {
		cmd := exec.Command(filepath.Join(n.libexec, "berth-images"), "import", "--socket", socket, path, good)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err == nil {
			t.Errorf("%s: no error", path)
		}
		var found, others bool
		for line := range bytes.Lines(out) {
			var r struct{ Archive, Name, Error string }
			if err := json.Unmarshal(line, &r); err != nil {
				t.Errorf("output %q: %v", line, err)
			}
			if r.Archive == path && strings.Contains(r.Error, why) && strings.Contains(r.Error, filepath.Base(path)) {
				found = true
			}
			others = others || r.Name == "docker.io/library/good:1"
		}
		if !found || !others {
			t.Errorf("%s: want an error with %q, and the other archive imported:\n%s%s", path, why, out, stderr.String())
		}
	}
}

// The layers of an archive are not even read if they were converted for another image.
func TestImportLayersOfOtherImages(t *testing.T) {
	if os.Getenv(snapshotterVariable) != "erofs" {
		t.Skip("layers are shared by the snapshotter erofs alone")
	}
	folder, err := os.MkdirTemp(os.Getenv(scratchVariable), "shared-")
	if err != nil {
		t.Fatal(err)
	}
	program, name := busybox()
	shared, own := programLayer(t, program, name), programLayer(t, "/proc/self/status", "status")
	first, second := filepath.Join(folder, "first.tar"), filepath.Join(folder, "second.tar")
	saveLayers(t, first, "shared.test/first:1", name, shared)
	saveLayers(t, second, "shared.test/second:1", name, shared, own)

	t.Run("one node", func(t *testing.T) {
		n := startNodeShared(t, "erofs", folder)
		n.importImage(first)
		if n.stored(shared) {
			t.Error("the layer was copied")
		}
		if !eventually(time.Minute, func() bool {
			found, _ := filepath.Glob(filepath.Join(folder, "layers-1/sha256/*.erofs"))
			return len(found) == 1
		}) {
			t.Error("the layer is not in the folder")
		}
	})
	// Read, it would be refused.
	for _, path := range []string{first, second} {
		archive, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archive[bytes.Index(archive, shared)+len(shared)/2] ^= 1
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("another node", func(t *testing.T) {
		n := startNodeShared(t, "erofs", folder)
		n.importImage(second, first)
		if n.stored(shared) || n.stored(own) {
			t.Error("a layer was copied")
		}
		for _, image := range []string{"shared.test/first:1", "shared.test/second:1"} {
			answer, err := n.images.ImageStatus(testContext(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
			if err != nil || answer.Image == nil {
				t.Errorf("CRI does not know %s: %v", image, err)
			}
		}
		// That an image is there for one runtime handler says that it is for all: nobody
		// pulls it for one with another snapshotter, nor could that unpack it. So the
		// snapshotter is the node's, see docs/design/0014-images.md.
		answer, err := n.images.ImageStatus(testContext(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: "shared.test/first:1", RuntimeHandler: "unpacked"}})
		if err != nil || answer.Image == nil {
			t.Errorf("CRI knows an image by its runtime handler, so that the choice of a snapshotter could be by image: %v", err)
		}
	})
}
