package imagestore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/distribution/reference"
)

// Mirrors makes containerd ask the mirror of archives before the registries
// that the archives' images are named after.
type Mirrors struct {
	// Dir holds a directory with a hosts.toml for each registry.
	Dir string
	// Address is the host:port of the mirror.
	Address string

	mu sync.Mutex
}

// Add adds the mirror to the registry of an image. It keeps the existing content of
// the file. It can be called twice, and concurrently.
func (m *Mirrors) Add(image string) error {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return fmt.Errorf("parse image name %q: %w", image, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := filepath.Join(m.Dir, reference.Domain(ref))
	path := filepath.Join(dir, "hosts.toml")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read hosts of registry: %w", err)
	}
	section := fmt.Appendf(nil, "\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+m.Address)
	if bytes.Contains(text, section) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory for hosts of registry: %w", err)
	}
	// Replace the file atomically: containerd reads it at every pull.
	if err := os.WriteFile(path+".new", append(text, section...), 0o644); err != nil {
		return fmt.Errorf("write hosts of registry: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write hosts of registry: %w", err)
	}
	return nil
}
