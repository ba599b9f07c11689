package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const folder = "/usr/local/nvidia/lib64"

// image makes a root file system with the folders, and the driver's folder.
func image(t *testing.T, folders ...string) string {
	root := t.TempDir()
	for _, name := range append(folders, folder) {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func link(t *testing.T, path string) string {
	t.Helper()
	target, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestLinkLibraries(t *testing.T) {
	debian := map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]
	for _, test := range []struct {
		folders []string
		want    string
	}{
		{[]string{debian, "/usr/lib64", "/usr/lib"}, debian},
		{[]string{"/usr/lib64", "/usr/lib"}, "/usr/lib64"},
		{[]string{"/lib"}, "/lib"},
	} {
		root := image(t, test.folders...)
		if test.want == "/lib" { // /usr/lib would be found first
			if err := os.RemoveAll(filepath.Join(root, "usr/lib")); err != nil {
				t.Fatal(err)
			}
		}
		own := filepath.Join(root, test.want, "libcuda.so.1")
		if err := os.WriteFile(own, []byte("the image's own"), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a container may be started again
			if err := linkLibraries(root, folder, []string{"libcuda.so.1=libcuda.so.580.1", "libcuda.so.580.1=libcuda.so.580.1"}); err != nil {
				t.Fatal(err)
			}
		}
		for path, want := range map[string]string{
			own: folder + "/libcuda.so.580.1",
			filepath.Join(root, test.want, "libcuda.so.580.1"): folder + "/libcuda.so.580.1",
			filepath.Join(root, folder, "libcuda.so.1"):        "libcuda.so.580.1",
		} {
			if got := link(t, path); got != want {
				t.Errorf("%s leads to %s, want %s", path, got, want)
			}
		}
	}
}

func TestImageWithoutLibraries(t *testing.T) {
	root := image(t)
	if err := linkLibraries(root, folder, []string{"libcuda.so.1=libcuda.so.580.1"}); err != nil {
		t.Error(err)
	}
}

// A link in an image that would lead out of it leads to the same path inside.
func TestImageCannotLeadOutside(t *testing.T) {
	outside := t.TempDir()
	root := image(t, outside)
	if err := os.Symlink(outside, filepath.Join(root, "usr/lib")); err != nil {
		t.Fatal(err)
	}
	if err := linkLibraries(root, folder, []string{"libcuda.so.1=libcuda.so.580.1"}); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("%s was made outside of the image", entries[0].Name())
	}
	link(t, filepath.Join(root, outside, "libcuda.so.1"))
}

// A container without a root file system has no place for links.
func TestSpecificationWithoutRoot(t *testing.T) {
	bundle := t.TempDir()
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := rootOf(strings.NewReader(`{"bundle":"` + bundle + `"}`))
	if want := "parse container specification of " + bundle + ": it names no root file system"; err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
}

func TestRun(t *testing.T) {
	bundle := t.TempDir()
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs/usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs", folder), 0o755); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(specs.Spec{Root: &specs.Root{Path: "rootfs"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := json.Marshal(specs.State{Bundle: bundle})
	if err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"libraries", "--folder", folder, "a.so.1=a.so.1.2"}, strings.NewReader(string(state))); err != nil {
		t.Fatal(err)
	}
	link(t, filepath.Join(bundle, "rootfs/usr/lib/a.so.1"))
	for _, args := range [][]string{nil, {"other"}, {"libraries", "--folder", folder, "../x=y"}, {"libraries", "--folder", folder, "x"}, {"libraries", "--folder", "/nowhere", "x=y"}} {
		if err := run(args, strings.NewReader(string(state))); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
