// Command mkimage writes one image archive from a recipe, see package recipe.
//
//	mkimage [-C DIR] [-arch amd64] [-format oci|docker] -o OUT.tar RECIPE
//
// It does nothing when OUT.tar was made from the very same inputs.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"berth.dev/berth/test/images/recipe"
)

func main() {
	dir := flag.String("C", ".", "directory that the recipe's sources are in")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the image, as Go says it")
	format := flag.String("format", "oci", "oci or docker")
	out := flag.String("o", "", "archive to write")
	flag.Parse()
	if flag.NArg() != 1 || *out == "" || (*format != "oci" && *format != "docker") {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *dir, *arch, *format, *out); err != nil {
		fmt.Fprintf(os.Stderr, "mkimage: %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func run(file, dir, arch, format, out string) (err error) {
	text, err := os.Open(file)
	if err != nil {
		return err
	}
	defer text.Close()
	r, err := recipe.Parse(text, dir)
	if err != nil {
		return err
	}
	key, err := inputs(r, file, arch, format)
	if err != nil {
		return err
	}
	keyFile := out + ".key"
	if old, err := os.ReadFile(keyFile); err == nil && string(old) == key {
		if _, err := os.Stat(out); err == nil {
			return nil
		}
	}
	scratch, err := os.MkdirTemp(filepath.Dir(out), ".mkimage-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	images, err := r.Images(arch, scratch)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(scratch, "archive.tar"))
	if err != nil {
		return err
	}
	write := r.WriteOCI
	if format == "docker" {
		write = r.WriteDocker
	}
	if err := errors.Join(write(f, images), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), out); err != nil {
		return err
	}
	return os.WriteFile(keyFile, []byte(key), 0o644)
}

// inputs returns a digest of everything that the archive depends on.
func inputs(r recipe.Recipe, file, arch, format string) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s %s\n", arch, format)
	sources := []string{file}
	if self, err := os.Executable(); err == nil {
		sources = append(sources, self)
	}
	for _, layer := range r.Layers {
		for _, e := range layer {
			if e.Source != "" {
				sources = append(sources, e.Source)
			}
			fmt.Fprintln(sum, e.Path, e.Target) // lists that the recipe names
		}
	}
	for _, source := range sources {
		s, err := filepath.EvalSymlinks(source)
		if err != nil {
			return "", err
		}
		err = filepath.WalkDir(s, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			fmt.Fprintf(sum, "%s %v\n", p[len(s):], info.Mode())
			if d.Type()&fs.ModeSymlink != 0 {
				target, err := os.Readlink(p)
				fmt.Fprintln(sum, target)
				return err
			}
			if !d.Type().IsRegular() {
				return nil
			}
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(sum, f)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x\n", sum.Sum(nil)), nil
}
