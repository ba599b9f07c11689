package berthd

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

// An administrator copies the example of the page.
func TestExampleOfPageIsValid(t *testing.T) {
	page, err := os.ReadFile("../../../docs/site-network.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)\n   ```yaml\n(.*?)\n   ```\n").FindSubmatch(page)
	if example == nil {
		t.Fatal("docs/site-network.md has no example of site.yaml")
	}
	path := filepath.Join(t.TempDir(), "site.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll("\n"+string(example[1]), "\n   ", "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := siteconf.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if config.Cluster != "alps" || len(config.Policy.Users) == 0 {
		t.Errorf("the example is read as %+v", config)
	}
}

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
