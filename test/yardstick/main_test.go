package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestFigures: a name gives the unit.
func TestFigures(t *testing.T) {
	if got, want := figureOf("idle CPU, % of a core", 2), (figure{"idle CPU", "% of a core", "lower", 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestRepetitions: an interval of 95 % needs six; a comment gives the reason for fewer.
func TestRepetitions(t *testing.T) {
	plans, err := filepath.Glob("*.yaml")
	if err != nil || len(plans) != 2 {
		t.Fatal(plans, err)
	}
	repetitions := regexp.MustCompile(`repetitions: ([0-9]+),`)
	for _, path := range plans {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := ""
		for line := range strings.Lines(string(text)) {
			if match := repetitions.FindStringSubmatch(line); match != nil {
				if n, err := strconv.Atoi(match[1]); err != nil || n < 6 && !strings.Contains(before, "no interval") {
					t.Errorf("%s: %d repetitions, %v: %.60s", path, n, err, line)
				}
			}
			before = line
		}
	}
}
