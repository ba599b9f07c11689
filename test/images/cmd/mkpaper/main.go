// Command mkpaper writes the images of 'berth bench images' into a folder with an
// OCI layout, see package paper. It does nothing when they were made from the very
// same inputs.
//
//	mkpaper -python DIR -busybox FILE -first FILE [-berth PROGRAM] [FLAGS] OUT
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth.dev/berth/test/images/paper"
)

func main() {
	var s paper.Shape
	flag.Uint64Var(&s.Seed, "seed", 1, "decides what is generated")
	flag.StringVar(&s.Python, "python", "", "folder with Python and a scientific library")
	flag.StringVar(&s.Busybox, "busybox", "", "static busybox")
	flag.StringVar(&s.First, "first", "", "program that tells when it started")
	flag.StringVar(&s.Module, "module", "pandas", "library that the second checkpoint imports")
	flag.Int64Var(&s.Size, "size", 258_050_000, "of the patched image as a registry has it, in bytes; 0: as it comes")
	flag.IntVar(&s.Layers, "layers", 8, "with shards; there are four others")
	flag.IntVar(&s.Files, "files", 32768, "shards in all")
	flag.IntVar(&s.ShardSize, "shard", 4096, "size of a shard, in bytes")
	flag.IntVar(&s.Versions, "versions", 5, "of the patched image")
	tiers := flag.String("tiers", "small=40,medium=120,large=200", "assets of the lazy images, in MiB")
	exclude := flag.String("exclude", "", "folders that images do without, with commas between them")
	berth := flag.String("berth", "", "program that converts to eStargz; without it there are none")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	s.Exclude = strings.FieldsFunc(*exclude, func(r rune) bool { return r == ',' })
	var err error
	if s.Tiers, err = paper.Tiers(*tiers); err == nil {
		err = run(s, *berth, flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkpaper:", err)
		os.Exit(1)
	}
}

func run(s paper.Shape, berth, out string) (err error) {
	key, err := s.Key()
	if err != nil {
		return err
	}
	if berth != "" {
		key += "estargz in streams of several files\n" // changed with what the converter writes
	}
	keyFile := filepath.Join(out, "key")
	if old, err := os.ReadFile(keyFile); err == nil && string(old) == key {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(out), ".mkpaper-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	made := filepath.Join(scratch, "images")
	if err := s.Write(made, converter(berth, scratch)); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(out), os.WriteFile(filepath.Join(made, "key"), []byte(key), 0o644)); err != nil {
		return err
	}
	return os.Rename(made, out)
}

// converter has berth convert an image to eStargz.
func converter(berth, scratch string) func(layout, archive string) error {
	if berth == "" {
		return nil
	}
	return func(layout, archive string) error {
		cache := filepath.Join(scratch, "cache")
		command := exec.Command(berth, "image", "convert", "--quiet", "--image-cache", cache, "--to", "estargz", layout, archive)
		command.Stdout, command.Stderr = os.Stderr, os.Stderr
		return errors.Join(command.Run(), os.RemoveAll(cache))
	}
}
