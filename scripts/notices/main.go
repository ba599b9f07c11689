// Command notices writes down what a distribution of berth is made of: the
// licences of everything in it (THIRD-PARTY-NOTICES) and a bill of materials
// (sbom.cdx.json, CycloneDX).
//
//	cd scripts/notices && GOARCH= go run . -out ../../dist ../../bin ../../libexec
//
// It reads the built programs, not the source: what a program holds is what
// its own build information says. Packages of Debian are known from a file
// VERSIONS and a directory copyright beside them, as scripts/debroot leaves
// them. A module without a licence is an error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", ".", "directory for the two files")
	version := flag.String("version", "devel", "version of berth")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(out, version string, roots []string) error {
	inventory, err := Scan(roots)
	if err != nil {
		return err
	}
	if err := inventory.ReadLicences(); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	return errors.Join(
		write(filepath.Join(out, "THIRD-PARTY-NOTICES"), inventory.Notices()),
		write(filepath.Join(out, "sbom.cdx.json"), inventory.CycloneDX(version)),
	)
}

func write(file string, content []byte) error {
	if err := os.WriteFile(file, content, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
