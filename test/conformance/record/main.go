// Command record reads what test/conformance/run leaves behind: which specs
// have no result yet, which failed, and docs/conformance.md, which it writes
// from nothing but these results and the causes that people found.
//
//	record pending LIST DIR           specs of LIST without a result
//	record failed LIST DIR            specs of LIST that failed the last time
//	record merge DIR                  all rounds as one JUnit file
//	record page LIST RESULTS CAUSES   docs/conformance.md
//
// DIR is the report folder of run; RESULTS may also be the file that merge
// made, compressed with gzip. The answer goes to standard output.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	out := bufio.NewWriter(os.Stdout)
	err := answer(out, os.Args[1:])
	if flushed := out.Flush(); err == nil {
		err = flushed
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func answer(out io.Writer, args []string) error {
	switch {
	case len(args) == 3 && (args[0] == "pending" || args[0] == "failed"):
		specs, err := readList(args[1])
		if err != nil {
			return err
		}
		rounds, err := readRounds(args[2])
		if err != nil {
			return err
		}
		all := histories(rounds)
		for _, spec := range specs {
			if wanted := all[spec].state(); (args[0] == "pending" && wanted == notRun) || (args[0] == "failed" && wanted == failed) {
				fmt.Fprintln(out, spec)
			}
		}
		return nil
	case len(args) == 2 && args[0] == "merge":
		rounds, err := readRounds(args[1])
		if err != nil {
			return err
		}
		return writeRounds(out, rounds)
	case len(args) == 4 && args[0] == "page":
		specs, err := readList(args[1])
		if err != nil {
			return err
		}
		rounds, err := readRounds(args[2])
		if err != nil {
			return err
		}
		causes, err := readCauses(args[3])
		if err != nil {
			return err
		}
		return writePage(out, specs, rounds, causes)
	}
	return fmt.Errorf("read the command line %q: want pending LIST DIR, failed LIST DIR, merge DIR, or page LIST RESULTS CAUSES", args)
}

// readList returns the lines of a file.
func readList(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of specs: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), nil
}

// readCauses returns the sections of a Markdown file by their headings of the
// second level. Each heading is the name of a spec.
func readCauses(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the causes: %w", err)
	}
	causes := make(map[string]string)
	for _, section := range strings.Split("\n"+string(text), "\n## ")[1:] {
		spec, cause, _ := strings.Cut(section, "\n")
		causes[strings.TrimSpace(spec)] = strings.TrimSpace(cause)
	}
	return causes, nil
}
