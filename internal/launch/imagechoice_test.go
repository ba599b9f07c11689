package launch

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
)

func TestLayerFolders(t *testing.T) {
	home, blocked := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(blocked, ".cache"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(home, ".cache", "berth")
	named := t.TempDir()
	shared := func(string) error { return nil }
	local := func(folder string) error { return errors.New("it is on ext4") }
	for _, c := range []struct {
		name, asked, home string
		check             func(string) error
		want              string
	}{
		{"a home that nodes share", "", home, shared, own},
		{"a home of one machine", "", home, local, ""},
		{"no home", "", "", shared, ""},
		{"a home where no folder can be made", "", blocked, shared, ""},
		{"what is named, wherever it is", named, home, local, named},
		{"a named folder in which nothing can be made", filepath.Join(blocked, ".cache"), home, shared, ""},
		{"off", "off", home, shared, ""},
		{"none", "none", home, shared, ""},
	} {
		var said strings.Builder
		var o Options
		o.Log, o.Spec.ImageCache = slog.New(slog.NewTextHandler(&said, nil)), c.asked
		o.Getenv = func(name string) string { return map[string]string{"HOME": c.home}[name] }
		if got := o.chooseImageCache(c.check); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		// The user receives no warning about a default that is unavailable.
		logged, want := said.String(), ""
		switch {
		case c.want == own:
			want = "layers of images are kept in " + own + " from now on"
		case c.want == "" && filepath.IsAbs(c.asked):
			want = "layers of images are not kept in " + c.asked
		}
		if (logged == "") != (want == "") || !strings.Contains(logged, want) {
			t.Errorf("%s: said %q, want %q", c.name, logged, want)
		}
	}
	if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder that was chosen: %v, %v", info, err)
	}
}

// If the device exists and is accessible, the error has no remedy.
func TestRemedyWithoutFUSE(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOENT: true, unix.ENODEV: true, unix.EACCES: true, unix.EMFILE: false, unix.EPERM: false} {
		if got := withoutDevice(err); !errors.Is(got, err) || strings.Contains(got.Error(), "modprobe") != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestOptionsWithoutFilesAreNamed(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spec       cluster.Spec
		given      []string
	}{
		{"a folder", "--image-cache", cluster.Spec{ImageCache: "/project/images"}, []string{"file", "image-cache"}},
		{"no folder", "--lazy-pull", cluster.Spec{ImageCache: "off", LazyPull: true}, []string{"image-cache", "lazy-pull"}},
		{"both", "--image-cache and --lazy-pull", cluster.Spec{ImageCache: "/project/images", LazyPull: true}, []string{"image-cache", "lazy-pull"}},
		{"a site's settings", "", cluster.Spec{ImageCache: "/project/images", LazyPull: true}, []string{"file"}},
		{"one of them a site's", "--lazy-pull", cluster.Spec{ImageCache: "/project/images", LazyPull: true}, []string{"lazy-pull"}},
	} {
		if got := (Options{Spec: c.spec, Given: c.given}).needsFiles(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestEachNodeHasItsOwnCacheOrNone(t *testing.T) {
	spec := cluster.Spec{Command: []string{"true"}, NodesPerHost: 1}
	offers := []cluster.Offer{
		{Host: "n1", RunID: "r", Snapshotter: cluster.EROFS, ImageCache: "/home/a/.cache/berth"},
		{Host: "n2", RunID: "r", Snapshotter: cluster.Overlay, ImageCache: "/home/a/.cache/berth"},
		{Host: "n3", RunID: "r", Snapshotter: cluster.EROFS},
	}
	plans, err := cluster.Design(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	if got := plans[0].ImageCache; got.Folder != "/home/a/.cache/berth" || got.Job != "r-n1" || got.Bytes != cluster.ImageCacheBytes || !got.KeepNamed {
		t.Errorf("the first node: %+v", got)
	}
	spec.ImageCacheLimit = "20G"
	limited, err := cluster.Design(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	if got := limited[0].ImageCache; got.Bytes != 20e9 || got.KeepNamed {
		t.Errorf("with a limit: %+v", got)
	}
	for _, plan := range plans[1:] {
		if got := plan.ImageCache; got.InUse() != "" {
			t.Errorf("%s: %+v", plan.Node.Name, got)
		}
	}
}
