package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestFigures: names of the overlay's benchmark give units and directions like others.
func TestFigures(t *testing.T) {
	for what, want := range map[string]figure{
		"bare-p50-us":          {Name: "l: bare-p50", Unit: "us", Better: "lower"},
		"overlay-Gbit/s":       {Name: "l: overlay", Unit: "Gbit/s", Better: "higher"},
		"slirp4netns-CPU-s/GB": {Name: "l: slirp4netns", Unit: "CPU-s/GB", Better: "lower"},
		"x-overlay-Gbit/s":     {Name: "l: x-overlay-Gbit/s", Unit: "times bare", Better: "higher"},
		"x-overlay-p50-us":     {Name: "l: x-overlay-p50-us", Unit: "times bare", Better: "lower"},
	} {
		if got := figureOf("l: "+withUnit(what), 0); got != want {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	if got, want := figureOf("idle CPU, % of a core", 2), (figure{"idle CPU", "% of a core", "lower", 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestRepetitions: an interval of 95 % needs six; a comment gives the reason for fewer.
func TestRepetitions(t *testing.T) {
	plans, err := filepath.Glob("*.yaml")
	if err != nil || len(plans) != 3 {
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
