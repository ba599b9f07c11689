// Command notices lists the contents of a distribution of berth: the licences of
// everything in it (THIRD-PARTY-NOTICES) and a bill of materials (sbom.cdx.json,
// CycloneDX).
//
//	cd scripts/notices && GOARCH= go run . -out ../../dist \
//		-debian libexec/berth/nft=../../build/amd64/nft/licences ../../bin ../../libexec
//
// It reads the built programs, not the source: a program's build information
// lists its modules. A C program has no such information; for one that is linked
// from Debian's packages, scripts/sysroot leaves a directory with a file VERSIONS
// and the packages' own texts. A module without a licence is an error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	out := flag.String("out", ".", "directory for the two files")
	version := flag.String("version", "devel", "version of berth")
	packages := map[string]string{}
	flag.Func("debian", "PROGRAM=DIRECTORY: what scripts/sysroot left about the packages in a program", func(value string) error {
		program, dir, ok := strings.Cut(value, "=")
		if !ok {
			return errors.New("not of the form PROGRAM=DIRECTORY")
		}
		packages[program] = dir
		return nil
	})
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, *version, flag.Args(), packages); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(out, version string, roots []string, packages map[string]string) error {
	inventory, err := Scan(roots, packages)
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
