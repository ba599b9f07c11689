package imagecache

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBundlesOfSteps checks the path of a bundle without a folder. It follows
// from the image's name, in the form that spank/image.c derives from a step's
// image.
func TestBundlesOfSteps(t *testing.T) {
	cache := t.TempDir()
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for name, want := range map[string]string{
		"busybox":                             "busybox:latest",
		"docker.io/library/busybox:1.37":      "busybox:1.37",
		"docker.io/alice/app":                 "alice%2Fapp:latest",
		"quay.io/alice/tools/app:1":           "quay.io%2Falice%2Ftools%2Fapp:1",
		"localhost:5000/app" + digest:         "localhost:5000%2Fapp" + digest,
		"registry.example.org:443/app":        "registry.example.org:443%2Fapp:latest",
		"registry.example.org/app:2" + digest: "registry.example.org%2Fapp:2" + digest,
	} {
		got, err := stepBundle(cache, name)
		if want = filepath.Join(cache, fmt.Sprintf("bundles-%d", os.Getuid()), want); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	if got, err := stepBundle(cache, "../app"); err == nil {
		t.Errorf("no name of an image: %s", got)
	}
}
