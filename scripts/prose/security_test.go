package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted   = regexp.MustCompile("`(\\w+)`")
	goTest   = regexp.MustCompile(`^(?:Test|Fuzz)[A-Z]\w*$`)
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	kinds    = regexp.MustCompile("(site cases?|cases?|story|stories)((?:(?:, | and | )?`\\w+`)+)")
	caseName = regexp.MustCompile(`(?m)^(\w+)\(\) \{`)
)

// shownBy heads the column of docs/security.md that names tests.
const shownBy = "shown by"

// TestSecurityNamesTests checks that docs/security.md names existing tests, and that
// each row with a column of tests names one, or reports that there is none.
func TestSecurityNamesTests(t *testing.T) {
	t.Chdir("../..")
	known := tests(t)
	content, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for _, problem := range unknownTests(text, known) {
		t.Error(problem)
	}
	rows := 0
	for row, cell := range evidence(text) {
		rows++
		if !quoted.MatchString(cell) && !strings.Contains(cell, "not tested") {
			t.Errorf("the row %.60q names no test, and is not marked as not tested", row)
		}
	}
	if rows < 50 {
		t.Errorf("found only %d rows with a column %q", rows, shownBy)
	}
}

func TestUnknownTests(t *testing.T) {
	known := map[string][]string{"": {"TestA", "FuzzB"}, "case": {"kill"}, "site case": {"apart"}, "story": {"keys"}}
	for text, want := range map[string]int{
		"`TestA`, `FuzzB`": 0, "`TestC`": 1, "case `kill`": 0, "case `apart`": 1, "cases `kill`, `lost`, `TestA`": 1,
		"site case `apart`": 0, "site cases `apart` and `kill`": 1, "story `keys`": 0, "the stories `keys`, `none`": 1, "mode `0600`": 0,
	} {
		if got := unknownTests(text, known); len(got) != want {
			t.Errorf("%s: %q, want %d", text, got, want)
		}
	}
	var cells []string
	for _, cell := range evidence("| a | shown by |\n| --- | --- |\n| x | `TestA` |\n| y | |\n\n| a | b |\n| --- | --- |\n| y | z |\n") {
		cells = append(cells, cell)
	}
	if want := []string{"`TestA`", ""}; !slices.Equal(cells, want) {
		t.Errorf("the cells are %q, want %q", cells, want)
	}
}

// unknownTests returns a message for each test that the text names and that is not known.
func unknownTests(text string, known map[string][]string) []string {
	var problems []string
	check := func(kind, name string) {
		if !slices.Contains(known[kind], name) {
			problems = append(problems, strings.TrimSpace(kind+" "+name)+" does not exist")
		}
	}
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		if goTest.MatchString(m[1]) {
			check("", m[1])
		}
	}
	for _, list := range kinds.FindAllStringSubmatch(text, -1) {
		kind := strings.TrimSuffix(strings.Replace(list[1], "stories", "story", 1), "s")
		for _, m := range quoted.FindAllStringSubmatch(list[2], -1) {
			if !goTest.MatchString(m[1]) {
				check(kind, m[1])
			}
		}
	}
	return problems
}

// tests returns the names of Go tests, and of the cases and stories by their kind.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	known := map[string][]string{}
	for kind, pattern := range map[string]string{"": "*_test.go", "case": "test/ends/*.sh", "site case": "test/site/*.sh", "story": "test/stories/testdata/*.txtar"} {
		files, err := git("ls-files", "--", pattern)
		if err != nil {
			t.Fatal(err)
		}
		declares := declared
		if kind != "" {
			declares = caseName
		}
		for file := range strings.Lines(files) {
			file = strings.TrimSuffix(file, "\n")
			if kind == "story" {
				known[kind] = append(known[kind], strings.TrimSuffix(file[strings.LastIndex(file, "/")+1:], ".txtar"))
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range declares.FindAllStringSubmatch(string(content), -1) {
				known[kind] = append(known[kind], m[1])
			}
		}
	}
	// A function of the shell is a case if the script that runs the cases lists it.
	for kind, script := range map[string]string{"case": "test/ends/run", "site case": "test/site/run"} {
		content, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		listed := strings.FieldsFunc(string(content), func(r rune) bool { return !strings.ContainsRune("_0123456789", r) && (r < 'a' || r > 'z') })
		known[kind] = slices.DeleteFunc(known[kind], func(name string) bool { return !slices.Contains(listed, name) })
	}
	return known
}

// evidence yields the rows of tables whose last column names tests, and that column.
func evidence(text string) func(yield func(row, cell string) bool) {
	return func(yield func(row, cell string) bool) {
		inside := false
		for row := range strings.SplitSeq(text, "\n") {
			if !strings.HasPrefix(row, "|") {
				inside = false
				continue
			}
			cells := strings.Split(strings.Trim(row, "|"), "|")
			last := strings.TrimSpace(cells[len(cells)-1])
			switch {
			case last == shownBy:
				inside = true
			case inside && strings.Trim(row, "|- ") != "":
				if !yield(row, last) {
					return
				}
			}
		}
	}
}
