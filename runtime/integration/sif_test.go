package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth.dev/berth/runtime/internal/corpus"
)

// sifImage imports a SIF file with all that a squashfs image can hold, and returns
// its path.
func (n *node) sifImage() string {
	n.t.Helper()
	layers, err := corpus.Layers()
	if err != nil {
		n.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, archive := range [][]byte{layers[0], programLayer(n.t, self, helperName)} {
		for r := tar.NewReader(bytes.NewReader(archive)); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = w.WriteHeader(header)
			}
			if err == nil {
				_, err = io.Copy(w, r)
			}
			if err != nil {
				n.t.Fatal(err)
			}
		}
	}
	archive, err := corpus.ForSquashfs(all.Bytes())
	if err != nil {
		n.t.Fatal(err)
	}
	path := filepath.Join(n.scratch, "corpus.sif")
	if err := corpus.SIF(path, archive, "-processors", "1", "-Xcompression-level", "1"); err != nil {
		n.t.Fatal(err)
	}
	lines := n.importImage(testImage + "=" + path)
	if stays := lines[0]["inPlace"] == true; stays != (n.snapshotter == "erofs") {
		n.t.Errorf("it is used in place: %t", stays)
	}
	return path
}

// A container sees the same of a SIF file, whether it was unpacked or is read where
// it lies; and then nothing was copied.
func TestContainersSeeSameFilesOfSIF(t *testing.T) {
	if os.Getenv(snapshotterVariable) != "erofs" {
		t.Skip("compares the other way with erofs, once")
	}
	seen := map[string][]string{}
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		t.Run(snapshotter, func(t *testing.T) {
			n := startNodeWith(t, snapshotter)
			n.sifImage()
			p := n.runPod("corpus")
			p.user, p.command = 0, []string{"/bin/" + helperName}
			id := p.run("sleeper", 0, "sleep")
			text, err := n.exec(id, "describe")
			if err != nil {
				t.Fatal(err)
			}
			seen[snapshotter] = slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
				// Nobody without privilege can unpack a device, and containerd leaves
				// the root as it is.
				return strings.HasPrefix(line, `"nodes`) || strings.HasPrefix(line, `"." `)
			})
			blobs, err := filepath.Glob(filepath.Join(n.scratch, "containerd/io.containerd.content.v1.content/blobs/sha256/*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, blob := range blobs {
				if info, err := os.Stat(blob); err != nil || snapshotter == "erofs" && info.Size() > 64<<10 {
					t.Errorf("%s: %v, %v", blob, info, err)
				}
			}
		})
	}
	if len(seen["overlayfs"]) < 1500 {
		t.Fatalf("%d files", len(seen["overlayfs"]))
	}
	if d := corpus.Difference(seen["erofs"], seen["overlayfs"]); d != "" {
		t.Error(d)
	}
}

// Processes that read and execute a SIF file go on while what serves it is killed,
// again and again, and also when the file has lost its name.
func TestKillLayersOfSIF(t *testing.T) {
	n := erofsNode(t)
	path := n.sifImage()
	p := n.runPod("soak")
	p.user, p.command = 0, []string{"/bin/" + helperName}
	id := p.run("soak", 0, "soak", "0")
	text := func() string {
		text, _ := os.ReadFile(filepath.Join(n.scratch, "logs", "soak", "soak.log"))
		return string(text)
	}
	if !eventually(2*time.Minute, func() bool { return strings.Contains(text(), soaking) }) {
		t.Fatalf("it does not begin:\n%s", text())
	}
	// It runs until a signal ends it.
	for killed := range 40 {
		if killed == 3 {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		n.layers.kill()
		n.layers.start()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if _, err := n.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 120}); err != nil {
		t.Fatal(err)
	}
	if s := n.awaitExit(id); s.ExitCode != 0 {
		t.Errorf("ended with %d:\n%s", s.ExitCode, text())
	}
	// A pod that starts when the file is gone, and not open anywhere, gets an
	// error that names the missing file.
	p.remove()
	n.unmountTrees()
	if !eventually(20*time.Second, func() bool { return n.layers.mounts() == 0 }) {
		t.Fatal("it is still mounted")
	}
	p = n.runPod("late")
	p.user, p.command = 0, []string{"/bin/" + helperName}
	_, err := n.runtime.CreateContainer(testContext(t), &cri.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config,
		Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "late"}, Image: &cri.ImageSpec{Image: testImage}, Command: p.command},
	})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a container of a file that is gone: %v", err)
	}
}

// A file that is changed where it lies gives errors, no other content, and that is
// said.
func TestChangedSIFFile(t *testing.T) {
	n := erofsNode(t)
	path := n.sifImage()
	p := n.runPod("changed")
	p.user, p.command = 0, []string{"/bin/" + helperName}
	id := p.run("sleeper", 0, "sleep")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	if text, err := n.exec(id, "describe"); err == nil {
		t.Errorf("all files can be read: %d bytes", len(text))
	}
	if text, err := os.ReadFile(n.layers.log); err != nil || !strings.Contains(string(text), "the SIF file has changed since it was imported") {
		t.Errorf("nothing is said of it: %s, %v", text, err)
	}
}
