package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// line is a line of prose: of a document, a comment, or a string literal.
type line struct {
	path   string
	number int
	text   string
	// function reports whether the line begins the comment on a function, with the
	// function's name.
	function bool
}

var (
	// Besides data, pages with names of specs and figures that others wrote are skipped.
	skipped  = regexp.MustCompile(`(^|/)testdata/|\.(sum|html|svg|png|gz|json|jsonl)$|^LICENSE$|(^|/)report\.md$|^docs/conformance(\.md$|/network-policy|/fast-path)|^scripts/prose/`)
	comment  = regexp.MustCompile(`^\s*(?://+|/?\*+|#+)\s?(.*)$`)
	trailing = regexp.MustCompile(`(?:^|[^:])//\s(.*)$`)
	hunk     = regexp.MustCompile(`^@@ -\S+ \+(\d+)`)
	declares = regexp.MustCompile(`^func (?:\([^)]*\) )?(\w+)`)
)

// prose returns the prose in a line of the named file, if there is any.
func prose(name, text string) (string, bool) {
	switch path.Ext(name) {
	case ".md":
		return text, !strings.HasPrefix(text, "    ") // indented lines are code
	case ".go", ".c", ".h":
		if m := trailing.FindStringSubmatch(text); m != nil {
			return m[1], true
		}
	}
	if m := comment.FindStringSubmatch(text); m != nil {
		return m[1], true
	}
	return "", false
}

// trackedLines returns the prose of all tracked files below the paths.
func trackedLines(paths []string) ([]line, error) {
	names, err := git(append([]string{"ls-files", "--"}, paths...)...)
	if err != nil {
		return nil, err
	}
	var lines []line
	for name := range strings.Lines(names) {
		lines = append(lines, linesOf(strings.TrimSuffix(name, "\n"))...)
	}
	return lines, nil
}

// linesOf returns the prose of a file. It returns none for skipped, deleted and binary
// files, and links to directories.
func linesOf(name string) (lines []line) {
	data, err := os.ReadFile(name)
	if skipped.MatchString(name) || err != nil || bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	return append(comments(name, string(data)), literals(name, data)...)
}

// comments returns the lines of a document, or of the comments in a file.
func comments(name, source string) (lines []line) {
	number, first := 0, -1 // first is the index of the current comment in lines
	for text := range strings.Lines(source) {
		number++
		if m := declares.FindStringSubmatch(text); m != nil && first >= 0 {
			lines[first].function = strings.HasPrefix(lines[first].text, m[1]+" ")
		}
		if !strings.HasPrefix(text, "//") {
			first = -1
		} else if first < 0 {
			first = len(lines)
		}
		if text, ok := prose(name, strings.TrimSuffix(text, "\n")); ok {
			lines = append(lines, line{path: name, number: number, text: text})
		}
	}
	return lines
}

// addedLines returns the prose of lines added since the revision.
func addedLines(base string, paths []string) ([]line, error) {
	diff, err := git(append([]string{"diff", "-U0", "--no-color", "--no-ext-diff", base, "--"}, paths...)...)
	if err != nil {
		return nil, err
	}
	var lines []line
	var all map[int][]line
	number := 0
	scanner := bufio.NewScanner(strings.NewReader(diff))
	scanner.Buffer(nil, len(diff)+1)
	for scanner.Scan() {
		text := scanner.Text()
		if file, ok := strings.CutPrefix(text, "+++ "); ok {
			all = map[int][]line{}
			for _, l := range linesOf(strings.TrimPrefix(file, "b/")) {
				all[l.number] = append(all[l.number], l)
			}
		} else if m := hunk.FindStringSubmatch(text); m != nil {
			number, _ = strconv.Atoi(m[1]) // digits
		} else if strings.HasPrefix(text, "+") {
			lines = append(lines, all[number]...)
			number++
		}
	}
	return lines, scanner.Err()
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}
