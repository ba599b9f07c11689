package berthd

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/pcocc.md names the test of each sentence of the paper, and marks the tests
// that `make test` does not run.
func TestPageMarksChecksOfLongForm(t *testing.T) {
	script, err := os.ReadFile("../../../test/site/run")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/pcocc.md")
	if err != nil {
		t.Fatal(err)
	}
	list := func(name string) []string {
		found := regexp.MustCompile(`(?m)^` + name + `=\((.+)\)$`).FindSubmatch(script)
		if found == nil {
			t.Fatalf("test/site/run has no %s", name)
		}
		return strings.Fields(string(found[1]))
	}
	short, long := list("cases"), list("faults")
	named := 0
	for _, name := range regexp.MustCompile("`([a-z0-9_]+)`(\\\\\\*)?").FindAllStringSubmatch(string(page), -1) {
		star := name[2] != ""
		switch {
		case slices.Contains(long, name[1]) != star:
			t.Errorf("`%s` has a star: %t, and is in the short form: %t", name[1], star, slices.Contains(short, name[1]))
		case star || slices.Contains(short, name[1]):
			named++
		}
	}
	if named < 30 {
		t.Errorf("only %d cases were found in the page", named)
	}
}
