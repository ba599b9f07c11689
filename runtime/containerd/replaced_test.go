package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// After an upgrade of containerd, compare these files with _cri, and write their sums here.
func TestReplacedFilesOfContainerd(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containerd/containerd/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, sum := range map[string]string{
		"internal/cri/io/logger.go":              "4ddc8111960873a8b39063245adbf38b0bca1e3b83b97e5e7b52452f943a53dd",
		"internal/cri/server/cni_conf_syncer.go": "9f499e1fd8855416f3fad948e4bdd2cace6d66761b81ef48e1e1e6d71079b1ca",
	} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), name))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != sum {
			t.Errorf("containerd has another %s: %s", name, got)
		}
	}
}
