package pause

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func TestImageIsConsistent(t *testing.T) {
	img, err := newImage(runtime.GOARCH)
	if err != nil {
		t.Skip(err) // make builds the program; go test may run before
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(img.blobs[img.manifest.Digest], &manifest); err != nil {
		t.Fatal(err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(img.blobs[manifest.Config.Digest], &config); err != nil {
		t.Fatal(err)
	}
	if config.Architecture != runtime.GOARCH || config.OS != "linux" {
		t.Errorf("platform %s/%s", config.OS, config.Architecture)
	}
	if len(manifest.Layers) != 1 || config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("layers %v, diff ids %v", manifest.Layers, config.RootFS.DiffIDs)
	}
	r := tar.NewReader(bytes.NewReader(img.blobs[manifest.Layers[0].Digest]))
	header, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	program, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if "/"+header.Name != config.Config.Entrypoint[0] || header.Mode&0o111 == 0 || !bytes.HasPrefix(program, []byte("\x7fELF")) {
		t.Errorf("%s, mode %o, %d bytes, entry point %v", header.Name, header.Mode, len(program), config.Config.Entrypoint)
	}
	if len(program) > 16<<10 {
		t.Errorf("the program has %d bytes: has it got a C library?", len(program))
	}
}

func TestUnknownArchitecture(t *testing.T) {
	if _, err := newImage("pdp11"); err == nil {
		t.Error("no error")
	}
}

// Any user of a pod may execute the program, also where nobody else may read what the
// user makes.
func TestUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	root := filepath.Join(t.TempDir(), "plain")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := place(root, []byte("program")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{root, filepath.Join(root, "pause")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// A job's signals reach the pause program, too, but only SIGKILL ends a pod's namespaces.
func TestOnlyKillEndsPause(t *testing.T) {
	img, err := newImage(runtime.GOARCH)
	if err != nil {
		t.Skip(err) // as above
	}
	path := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(path, img.program, 0o700); err != nil {
		t.Fatal(err)
	}
	pause := exec.Command(path)
	if err := pause.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- pause.Wait() }()
	status := func(line string) string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pause.Process.Pid))
		_, rest, _ := strings.Cut(string(text), "\n"+line+":\t")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
			select {
			case err := <-ended:
				t.Fatalf("%s: it has ended: %v", what, err)
			default:
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: it is %s, pending %s", what, status("State"), status("ShdPnd"))
			}
		}
	}
	asleep := func() bool { return strings.HasPrefix(status("State"), "S") }
	await("it waits for signals", asleep)
	for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1} {
		if err := pause.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	await("it takes them", func() bool { return strings.Trim(status("ShdPnd"), "0") == "" && asleep() })
	if err := pause.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
}
