// Command nft makes a shared library linkable into a static program. It writes
// an assembler file with the library's bytes, whose pointers the linker fills,
// and a linker script that keeps the distances between the library's segments.
//
//	go run . -name NAME -base ADDRESS -o DIR LIBRARY      writes DIR/NAME.S and DIR/NAME.ld
//
// It exists for libnftables, the one library of nft that Debian has no archive
// of, and supports only what that needs: a library without thread-local storage
// whose relocations are all whole pointers. It refuses anything else. The result
// is for programs at a fixed address only.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	name := flag.String("name", "library", "prefix of the sections")
	base := flag.Uint64("base", 0x10000000, "address of the library in the program")
	dir := flag.String("o", ".", "directory for the two files")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *name, *base, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "nft:", err)
		os.Exit(1)
	}
}

func run(file, name string, base uint64, dir string) error {
	library, err := open(file, name, base)
	if err != nil {
		return fmt.Errorf("read library (file %s): %w", file, err)
	}
	if err := write(filepath.Join(dir, name+".S"), library.assembler); err != nil {
		return err
	}
	return write(filepath.Join(dir, name+".ld"), library.script)
}

// write creates a file with the text that fill writes.
func write(file string, fill func(io.Writer)) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	fill(w)
	return errors.Join(w.Flush(), f.Close())
}
