// Package plans has the plans that come with the bench.
package plans

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

//go:embed *.yaml
var files embed.FS //nolint:gochecknoglobals // the only way to embed

// Names returns the names of the plans.
func Names() []string {
	entries, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil
	}
	for i, name := range entries {
		entries[i] = strings.TrimSuffix(name, ".yaml")
	}
	return entries
}

// Read returns a built-in plan by its name, or the plan in a file.
func Read(name string) (where string, text []byte, err error) {
	if text, err := files.ReadFile(path.Base(name) + ".yaml"); err == nil && !strings.Contains(name, "/") {
		return name, text, nil
	}
	text, err = os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("there is no plan and no file %s: 'berth bench list' shows the built-in plans", name)
	}
	return name, text, err
}
