package programs

import (
	"fmt"
	"os"
	"path/filepath"
)

// Tools returns the programs that users call themselves.
func Tools() []string { return []string{"kubectl", "helm"} }

// LinkTools makes a directory with this program and the tools, and nothing
// else: the other programs are none of the user's business. Its parent has to
// exist.
func LinkTools(bin string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find berth's own file: %w", err)
	}
	libexec, err := Dir()
	if err != nil {
		return err
	}
	links := map[string]string{"berth": self}
	for _, tool := range Tools() {
		links[tool] = filepath.Join(libexec, tool)
	}
	if err := os.Mkdir(bin, 0o700); err != nil {
		return fmt.Errorf("make directory of tools: %w", err)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("make directory of tools: %w", err)
		}
	}
	return nil
}
