// Command prose lists sentences in comments, documents and messages that a native
// reader would stumble over.
//
//	go run ./scripts/prose [-base REV] [PATH...]
//
// Without a path it reads every tracked file. With -base it reads only lines
// added since that revision, and exits with 1 if it finds one. A row marks a
// sentence to rewrite; swapping the word is rarely enough. The tests check the width
// and the links of documents.
//
// Read rules.go for the phrases, lines.go and literals.go for how prose is found in a
// file.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	base := flag.String("base", "", "read only lines added since `REV`, and fail if one is listed")
	flag.Parse()
	found, read, err := run(*base, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "prose: %d places in %d lines of comments, documents and messages\n", found, read)
	if *base != "" && found > 0 {
		os.Exit(1)
	}
}

// run prints a row for each place, and returns the numbers of places and of
// lines read.
func run(base string, paths []string) (found, read int, err error) {
	lines, err := trackedLines(paths)
	if base != "" {
		lines, err = addedLines(base, paths)
	}
	if err != nil {
		return 0, 0, err
	}
	for _, l := range lines {
		for _, r := range rules {
			if r.marks(l) {
				fmt.Printf("%s:%d: %s: %s\n", l.path, l.number, r.remedy, l.text)
				found++
			}
		}
	}
	return found, len(lines), nil
}
