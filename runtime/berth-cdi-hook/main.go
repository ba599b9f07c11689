// Command berth-cdi-hook completes a CDI specification of berth before the
// container's program starts. The container runtime calls it in the container's
// mount namespace, while the host's files are still visible.
//
//	berth-cdi-hook libraries --folder FOLDER NAME=FILE...
//
// adds the libraries in FOLDER to the search path of the container's dynamic
// linker.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "berth-cdi-hook:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader) error {
	if len(args) == 0 || args[0] != "libraries" {
		return fmt.Errorf("unknown task %q", args)
	}
	flags := flag.NewFlagSet("libraries", flag.ContinueOnError)
	folder := flags.String("folder", "", "where the libraries are in the container")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	root, err := rootOf(stdin)
	if err != nil {
		return err
	}
	return linkLibraries(root, *folder, flags.Args())
}

// rootOf returns the root file system of the container whose state the runtime
// writes to a hook.
func rootOf(state io.Reader) (string, error) {
	var container specs.State
	if err := json.NewDecoder(state).Decode(&container); err != nil {
		return "", fmt.Errorf("read the container's state: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(container.Bundle, "config.json"))
	if err != nil {
		return "", fmt.Errorf("read container specification: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return "", fmt.Errorf("parse container specification of %s: %w", container.Bundle, err)
	}
	if spec.Root == nil {
		return "", fmt.Errorf("parse container specification of %s: it names no root file system", container.Bundle)
	}
	if filepath.IsAbs(spec.Root.Path) {
		return spec.Root.Path, nil
	}
	return filepath.Join(container.Bundle, spec.Root.Path), nil
}
