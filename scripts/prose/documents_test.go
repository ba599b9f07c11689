package main

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	// longLink matches a link whose title names a figure.
	longLink  = regexp.MustCompile(`\]\(\S+ "[^"]+"\)`)
	target    = regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	heading   = regexp.MustCompile(`(?m)^#{1,6} (.*)$`)
	block     = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```$")
	named     = regexp.MustCompile("`((?:internal|runtime|test|scripts|docs|bench|packaging|programs|spank)/[\\w./-]+)")
	dropped   = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	elsewhere = regexp.MustCompile(`^[a-z]+:`)
)

// width is the greatest length of a line in a document.
const width = 100

// tooLong reports whether a line of a document goes past the width, and could be
// wrapped: it is not a heading or a row of a table, has a space to break at, and does
// not hold a link that quotes a figure.
func (l line) tooLong() bool {
	text := strings.TrimSpace(l.text)
	if path.Ext(l.path) != ".md" || utf8.RuneCountInString(l.text) <= width || strings.HasPrefix(text, "|") || strings.HasPrefix(text, "#") {
		return false
	}
	return strings.Contains(text, " ") && !longLink.MatchString(text)
}

// unwrapped lists documents with longer lines: this one quotes the suite's output.
var unwrapped = []string{"docs/conformance.md"}

// TestDocuments checks that the tracked documents have lines of at most 100 columns,
// that their links lead to files and headings that exist, and that files and folders
// that they name exist.
func TestDocuments(t *testing.T) {
	t.Chdir("../..")
	names, err := git("ls-files", "--", "*.md")
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for name := range strings.Lines(names) {
		name = strings.TrimSuffix(name, "\n")
		text := document(t, name)
		for row := range strings.SplitSeq(text, "\n") {
			_, isProse := prose(name, row)
			if isProse && !skipped.MatchString(name) && !slices.Contains(unwrapped, name) && (line{path: name, text: row}).tooLong() {
				t.Errorf("%s: wrap the line at column %d: %.60s...", name, width, row)
			}
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if file := strings.TrimRight(m[1], "./"); !exists(file) {
				t.Errorf("%s: `%s` does not exist", name, file)
			}
		}
		for _, link := range target.FindAllStringSubmatch(text, -1) {
			if elsewhere.MatchString(link[1]) {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(link[1], "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link %s: %v", name, link[1], err)
			} else if anchor != "" && !anchors(document(t, to))[anchor] {
				t.Errorf("%s: link %s: no such heading", name, link[1])
			}
		}
	}
	if links < 500 {
		t.Errorf("found only %d links", links)
	}
}

// exists reports whether the repository or one of its modules has a file, or builds it.
func exists(file string) bool {
	return strings.Contains(file, "/out/") || slices.ContainsFunc([]string{"", "runtime", "bench"}, func(module string) bool {
		_, err := os.Stat(path.Join(module, file))
		return err == nil
	})
}

// document returns the text of a document without its blocks of code.
func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return block.ReplaceAllString(string(text), "")
}

// anchors returns the names by which GitHub links to the headings of a text.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		names[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}
