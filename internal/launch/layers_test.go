package launch

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/cluster"
)

func TestWhereLayersAreKept(t *testing.T) {
	home, blocked := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(blocked, ".cache"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(home, ".cache", "berth")
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
		{"what is named, wherever it is", "/project/images", home, local, "/project/images"},
		{"off", "off", home, shared, ""},
		{"none", "none", home, shared, ""},
	} {
		r := &run{}
		r.Log, r.Spec.ImageCache = slog.New(slog.DiscardHandler), c.asked
		r.Getenv = func(name string) string { return map[string]string{"HOME": c.home}[name] }
		if got := r.chooseImageCache(c.check); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder that was chosen: %v, %v", info, err)
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
