// Package programs lists the programs that come with berth and their versions.
// It reads both from the program files and starts none of them, so that the
// answer stays true when somebody replaces a file.
//
// How the programs are started and configured does not belong here.
package programs

import (
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Program is one file that comes with berth.
type Program struct {
	// Name is the path below the directory of programs, such as "cni/bridge".
	Name string `json:"name"`
	// Component is the Go module, or the package of a distribution, that the
	// program was built from. It is empty if the file has no such record.
	Component string `json:"component,omitempty"`
	Version   string `json:"version,omitempty"`
	// Go is the version of the compiler, for Go programs.
	Go string `json:"go,omitempty"`
}

// components names the module that a program of ours is a build of; all others
// are the module that holds their main package.
func components(name string) string {
	switch name {
	case "berth-kube":
		return "k8s.io/kubernetes"
	case "kubectl":
		return "k8s.io/kubectl"
	case "coredns":
		return "github.com/coredns/coredns"
	case "containerd", "containerd-shim-berth-v2", "berth-images", "berth-layers":
		return "github.com/containerd/containerd/v2"
	}
	return ""
}

// Self returns the path of this program, without symbolic links.
func Self() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find berth's own file: %w", err)
	}
	return self, nil
}

// Dir returns the programs' directory: libexec/berth, beside the bin directory
// of this program.
func Dir() (string, error) {
	self, err := Self()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(filepath.Dir(self)), "libexec", "berth"), nil
}

// List returns the programs below the directory, sorted by name.
func List(directory string) ([]Program, error) {
	var programs []Program
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		// A program that is a part of another one is a link to it.
		if err != nil || !entry.Type().IsRegular() && entry.Type() != fs.ModeSymlink {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		programs = append(programs, describe(path, name))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the programs that come with berth (directory %s): %w", directory, err)
	}
	slices.SortFunc(programs, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	return programs, nil
}

func describe(path, name string) Program {
	program := Program{Name: name}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		if note, err := readPackageNote(path); err == nil {
			program.Component, program.Version = note.Name, note.Version
		}
		return program
	}
	program.Component, program.Version = info.Main.Path, info.Main.Version
	program.Go = strings.TrimPrefix(info.GoVersion, "go")
	for _, module := range info.Deps {
		if module.Path != components(name) {
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		program.Component, program.Version = module.Path, module.Version
	}
	// The libraries of Kubernetes are v0.36.3 where Kubernetes is v1.36.3.
	if program.Component == "k8s.io/kubectl" {
		program.Version = strings.Replace(program.Version, "v0.", "v1.", 1)
	}
	return program
}
