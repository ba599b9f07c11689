package main

import (
	"os"
	"strings"
	"testing"
)

// TestProxy: of the configuration that berth writes.
func TestProxy(t *testing.T) {
	template, err := os.ReadFile("../../../internal/node/containerdconf/containerd.toml.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	written := func(snapshotter string) string {
		text := strings.NewReplacer("{SNAPSHOTTER}", snapshotter, "{ROOT}", `"/root"`, "{STATE}", `"/state"`, "{REGISTRIES}", `"/hosts"`,
			"{SELF}", "0", "{PEERS}", "", "{CACHELIMIT}", "0", "{FASTPATH}", "").Replace(string(template))
		for _, name := range []string{"{SQUASH}", "{KEEPNAMED}", "{LAZY}"} {
			text = strings.ReplaceAll(text, name, "false")
		}
		var lines []string
		for line := range strings.Lines(text) {
			// The rest are strings, or empty.
			if key, value, is := strings.Cut(line, " = "); is && strings.Contains(value, "{") && !strings.Contains(value, "[") {
				line = key + ` = "x"` + "\n"
			} else if is && strings.Contains(value, "{") {
				line = key + " = []\n"
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, "")
	}
	proxied, at, err := proxy(written("overlayfs"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (places{"/root/io.containerd.snapshotter.v1.stargz", "/state/stargz.sock", "/hosts"}); at != want {
		t.Errorf("got %+v, want %+v", at, want)
	}
	// Of transfers, of CRI and of the pause image.
	if n := strings.Count(proxied, `snapshotter = "stargz"`); n != 3 || strings.Contains(proxied, own) {
		t.Errorf("%d plugins have it: %s", n, proxied)
	}
	for _, want := range []string{`address = "/state/stargz.sock"`, `enable_remote_snapshot_annotations = "true"`, "[proxy_plugins.stargz]"} {
		if !strings.Contains(proxied, want) {
			t.Errorf("no %s in %s", want, proxied)
		}
	}
	for _, text := range []string{"", "=", `root = "/root"` + "\n" + own, written("erofs")} {
		if _, _, err := proxy(text); err == nil {
			t.Errorf("%s has all that is needed", text)
		}
	}
}
