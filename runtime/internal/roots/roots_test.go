package roots

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
)

// fake has one snapshot with a parent, and returns mounts like containerd's.
type fake struct {
	snapshots.Snapshotter
	parent  string
	mounts  []mount.Mount
	removed []string
}

func (f *fake) Prepare(context.Context, string, string, ...snapshots.Opt) ([]mount.Mount, error) {
	return f.mounts, nil
}
func (f *fake) View(context.Context, string, string, ...snapshots.Opt) ([]mount.Mount, error) {
	return f.mounts, nil
}
func (f *fake) Mounts(context.Context, string) ([]mount.Mount, error) { return f.mounts, nil }
func (f *fake) Stat(context.Context, string) (snapshots.Info, error) {
	return snapshots.Info{Parent: f.parent}, nil
}
func (f *fake) Remove(_ context.Context, key string) error {
	f.removed = append(f.removed, key)
	return nil
}

var layer = digest.FromString("layer")

func overlay(upper string) []mount.Mount {
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"workdir=/w", "upperdir=" + upper, "lowerdir=/snapshots/1/fs", "userxattr"}}}
}

func TestFolderInsteadOfItsLayer(t *testing.T) {
	root, upper := t.TempDir(), t.TempDir()
	folder := filepath.Join(t.TempDir(), "app:1,2")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the image may be imported again
		if err := Record(root, layer, folder); err != nil {
			t.Fatal(err)
		}
	}
	inner := &fake{parent: "k8s.io/7/" + layer.String(), mounts: overlay(upper)}
	s := New(inner, root)
	look := func(what string, mounts []mount.Mount, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, option := range mounts[0].Options {
			lower, found := strings.CutPrefix(option, "lowerdir=")
			if target, err := os.Readlink(lower); found && (err != nil || target != folder || strings.ContainsAny(lower, ":,")) {
				t.Errorf("%s: %s is to %q, %v", what, option, target, err)
			}
		}
	}
	mounts, err := s.Prepare(t.Context(), "key", inner.parent)
	look("prepare", mounts, err)
	mounts, err = s.Mounts(t.Context(), "key")
	look("mounts", mounts, err)
	if !slices.Contains(inner.mounts[0].Options, "upperdir="+upper) {
		t.Errorf("%v", inner.mounts)
	}
	inner.mounts = []mount.Mount{{Type: "bind", Source: "/snapshots/1/fs", Options: []string{"ro", "rbind"}}}
	mounts, err = s.View(t.Context(), "key", inner.parent)
	if target, bad := os.Readlink(mounts[0].Source); errors.Join(err, bad) != nil || target != folder {
		t.Errorf("view: %v, %v, %v", mounts, err, bad)
	}

	// Other layers are not replaced.
	for _, parent := range []string{"", "k8s.io/8/" + digest.FromString("other").String(), "k8s.io/9/../" + layer.Encoded()} {
		inner.mounts = overlay(upper)
		mounts, err := s.Prepare(t.Context(), "key", parent)
		if err != nil || !slices.Contains(mounts[0].Options, "lowerdir=/snapshots/1/fs") {
			t.Errorf("upon %q: %v, %v", parent, mounts, err)
		}
	}

	// A missing folder is an error, and leaves no snapshot.
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(t.Context(), "key", inner.parent); err == nil || !strings.Contains(err.Error(), "the folder does not exist any more") || len(inner.removed) != 1 {
		t.Errorf("a folder that is gone: %v, removed %v", err, inner.removed)
	}
}

func TestLayerRepresentsOneFolder(t *testing.T) {
	root := t.TempDir()
	if err := Record(root, layer, "/a"); err != nil {
		t.Fatal(err)
	}
	if err := Record(root, layer, "/b"); err == nil || !strings.Contains(err.Error(), "stands for /a") {
		t.Errorf("a second folder: %v", err)
	}
	if err := Record(root, "sha256:../../x", "/b"); err == nil {
		t.Error("a layer without a digest")
	}
}

// Folders with unmapped owners become the container's, except folders that only
// their owner may enter.
func TestForeignFolders(t *testing.T) {
	folder, upper, root := t.TempDir(), t.TempDir(), t.TempDir()
	tag := filepath.Join(t.TempDir(), "tag")
	for name, mode := range map[string]os.FileMode{"etc": 0o755, "tmp": 0o777 | os.ModeSticky, "root": 0o700, "var": 0o755, "var/tmp": 0o777 | os.ModeSticky, "var/lib": 0o755, "etc/deep": 0o755} {
		if err := errors.Join(os.MkdirAll(filepath.Join(folder, name), 0o755), os.Chmod(filepath.Join(folder, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc", filepath.Join(folder, "link")), os.WriteFile(filepath.Join(folder, "file"), nil, 0o644), os.Symlink(folder, tag), Record(root, layer, tag)); err != nil {
		t.Fatal(err)
	}
	s := New(&fake{mounts: overlay(upper)}, root)
	if _, err := s.Prepare(t.Context(), "key", layer.String()); err != nil {
		t.Fatal(err)
	}
	if there, err := os.ReadDir(upper); err != nil || len(there) > 0 {
		t.Errorf("the owner's own: %v, %v", there, err)
	}
	s.foreign = uint32(os.Getuid())
	s.Snapshotter.(*fake).mounts = overlay(upper)
	if _, err := s.Prepare(t.Context(), "key", layer.String()); err != nil {
		t.Fatal(err)
	}
	got := map[string]os.FileMode{}
	err := filepath.WalkDir(upper, func(path string, e os.DirEntry, err error) error {
		info, err := e.Info()
		name, _ := filepath.Rel(upper, path)
		got[name] = info.Mode()
		return err
	})
	want := map[string]os.FileMode{
		"etc": os.ModeDir | 0o755, "tmp": os.ModeDir | os.ModeSticky | 0o777, "var": os.ModeDir | 0o755,
		"var/tmp": os.ModeDir | os.ModeSticky | 0o777, "var/lib": os.ModeDir | 0o755,
	}
	delete(got, ".")
	if err != nil || len(got) != len(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for name, mode := range want {
		if got[name] != mode {
			t.Errorf("%s: %v, want %v", name, got[name], mode)
		}
	}
}
