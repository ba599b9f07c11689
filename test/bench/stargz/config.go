package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// places holds the paths of the snapshotter.
type places struct{ root, socket, hosts string }

// own is berth's setting for the snapshotter that this one replaces, and transfer
// is the plugin whose settings name the folder of registries.
const (
	own      = `snapshotter = "overlayfs"`
	transfer = "io.containerd.transfer.v1.local"
)

// proxy turns berth's configuration into a configuration for a containerd whose
// snapshotter is a proxy plugin. Without the export, containerd would pass
// it no annotations of the image, and it would fetch layers as a whole.
func proxy(text string) (proxied string, at places, err error) {
	var config struct {
		Root    string
		State   string
		Plugins map[string]map[string]any
	}
	if err := toml.Unmarshal([]byte(text), &config); err != nil {
		return "", at, err
	}
	hosts, _ := config.Plugins[transfer]["config_path"].(string)
	if config.Root == "" || config.State == "" || hosts == "" {
		return "", at, errors.New("it names no root, no state or no folder of registries")
	}
	if !strings.Contains(text, own) {
		return "", at, fmt.Errorf("there is no %s in it; give berth run --snapshotter overlayfs", own)
	}
	at = places{filepath.Join(config.Root, "io.containerd.snapshotter.v1.stargz"), filepath.Join(config.State, "stargz.sock"), hosts}
	return strings.ReplaceAll(text, own, `snapshotter = "stargz"`) + fmt.Sprintf(`
[proxy_plugins.stargz]
  type = "snapshot"
  address = %q
  [proxy_plugins.stargz.exports]
    root = %q
    enable_remote_snapshot_annotations = "true"
`, at.socket, at.root), at, nil
}
