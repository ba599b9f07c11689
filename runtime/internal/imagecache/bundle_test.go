package imagecache

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestBundle(t *testing.T) {
	p, _ := pulledImage(t)
	dir := filepath.Join(t.TempDir(), "app")
	if err := os.Mkdir(dir, 0o755); err != nil { // an empty folder is accepted
		t.Fatal(err)
	}
	project := t.TempDir()
	image, made, err := p.Bundle(t.Context(), "reg.test/team/app:1", dir, []Folder{{Source: project, Target: "/data/of/project", ReadOnly: true}})
	if err != nil || image.Name != "reg.test/team/app:1" || made.Bytes != 380000 || len(made.Warnings()) > 0 {
		t.Fatalf("%+v, %+v, %v", image, made, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	if spec.Root.Path != "rootfs" || !spec.Root.Readonly || !slices.Contains(spec.Process.Env, "A=b") || !slices.Contains(spec.Process.Env, "HOME=/root") {
		t.Errorf("%s", text)
	}
	if last := spec.Mounts[len(spec.Mounts)-1]; last.Source != project || last.Destination != "/data/of/project" || !slices.Contains(last.Options, "ro") {
		t.Errorf("mount %+v", last)
	}
	for name, isDir := range map[string]bool{"proc": true, "data/of/project": true, "etc/hosts": false, "file": false} {
		if info, err := os.Stat(filepath.Join(dir, "rootfs", name)); err != nil || info.IsDir() != isDir {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may enter: %v, %v", info.Mode(), err)
	}
}

func TestBundleRefuses(t *testing.T) {
	p, _ := pulledImage(t)
	place := t.TempDir()
	full := filepath.Join(place, "full")
	if err := errors.Join(os.Mkdir(full, 0o755), os.WriteFile(filepath.Join(full, "mine"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("stopped"))
	for _, c := range []struct {
		ctx             context.Context
		name, dir, want string
	}{
		{t.Context(), "nothing:1", filepath.Join(place, "a"), "no image of that name"},
		{t.Context(), "No Name", filepath.Join(place, "a"), "parse image name"},
		{t.Context(), "reg.test/team/app:1", full, "not empty"},
		{t.Context(), "reg.test/team/app:1", filepath.Join(full, "mine"), "not a directory"},
		{t.Context(), "reg.test/team/app:1", filepath.Join(place, "no", "a"), "no such file"},
		{stopped, "reg.test/team/app:1", filepath.Join(place, "a"), "stopped"},
	} {
		if _, _, err := p.Bundle(c.ctx, c.name, c.dir, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %s: %v; want an error with %q", c.name, c.dir, err, c.want)
		}
		if files, err := os.ReadDir(place); err != nil || len(files) != 1 {
			t.Errorf("left %v, %v", files, err)
		}
	}
}

func TestRuntimeSpec(t *testing.T) {
	spec := runtimeSpec(ocispec.ImageConfig{
		Entrypoint: []string{"/entry"}, Cmd: []string{"a", "b"}, Env: []string{"PATH=/opt/bin", "HOME=/here"}, WorkingDir: "work",
	}, "/root", nil)
	if !slices.Equal(spec.Process.Args, []string{"/entry", "a", "b"}) || spec.Process.Cwd != "/work" || !slices.Equal(spec.Process.Env, []string{"HOME=/here", "PATH=/opt/bin"}) {
		t.Errorf("%+v", spec.Process)
	}
	if spec := runtimeSpec(ocispec.ImageConfig{}, "/root", nil); !slices.Equal(spec.Process.Args, []string{"/bin/sh"}) || spec.Process.Cwd != "/" {
		t.Errorf("of an image that says nothing: %+v", spec.Process)
	}
}

func TestUserHomes(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc", "passwd"),
		[]byte("root:x:0:0::/var/root:/bin/sh\nbroken\napp:x:1000:1000::/srv/app:/bin/sh\nodd:x:7:7::relative:\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for user, want := range map[string]string{"": "/var/root", "0:0": "/var/root", "root": "/var/root", "app": "/srv/app", "1000:5": "/srv/app", "odd": "/", "nobody": "/"} {
		if got := home(root, user); got != want {
			t.Errorf("home of %q is %s, want %s", user, got, want)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "etc")); err != nil {
		t.Fatal(err)
	}
	if got := home(root, ""); got != "/root" {
		t.Errorf("home without users is %s", got)
	}
}

// Files are mounted over links, too.
func TestMountpoints(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.Symlink("/run/systemd/resolv.conf", filepath.Join(dir, "etc", "hosts"))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := mountpoint(root, bind("/etc/hosts", "/etc/hosts", true)); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "etc", "hosts")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
	// A mount point whose source exists only on nodes replaces no file of the
	// image.
	if err := mountpoint(root, bind(filepath.Join(dir, "nothing"), "/data/file", false)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "data")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in place of what is not here: %v", err)
	}
}
