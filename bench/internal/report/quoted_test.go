package report

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// quoted matches a figure that a page quotes from a report: a link whose title names the case,
// the system and the figure, and "times REFERENCE" where it is the ratio. A "|" would end a
// cell of a table.
var quoted = regexp.MustCompile(`\[([0-9.,]+)\]\([^) ]*bench/([a-z-]+)/report\.md "([^"]+)"\)`) //nolint:gochecknoglobals // a constant

// TestQuotedFigures checks the figures in the pages that users read against the records.
func TestQuotedFigures(t *testing.T) {
	runs := map[string]Report{}
	for page, least := range map[string]int{"README.md": 11, "docs/comparison.md": 59, "docs/network.md": 32, "docs/limits.md": 12, "docs/design/0006-overlay.md": 1} {
		text, err := os.ReadFile("../../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		quotes := quoted.FindAllStringSubmatch(string(text), -1)
		if len(quotes) < least {
			t.Errorf("%s quotes %d figures, want %d at least", page, len(quotes), least)
		}
		for _, quote := range quotes {
			shown, run, key := quote[1], quote[2], quote[3]
			r, is := runs[run]
			if !is {
				lines, err := record.ReadFile("../../../docs/bench/" + run + "/records.jsonl.zst")
				if err == nil {
					r, err = model(lines)
				}
				if err != nil {
					t.Fatalf("%s quotes %s: %v", page, run, err)
				}
				runs[run] = r
			}
			value, err := r.quote(key)
			if err != nil {
				t.Errorf("%s: %s %q: %v", page, run, key, err)
			} else if !rounded(shown, value) {
				t.Errorf("%s: %s %q is %.5g, and the page has %s", page, run, key, value, shown)
			}
		}
	}
}

// TestConformanceRun: the README names the day and the commit of the recorded run.
func TestConformanceRun(t *testing.T) {
	var pages [2]string
	for i, page := range []string{"README.md", "docs/conformance.md"} {
		text, err := os.ReadFile("../../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		pages[i] = string(text)
	}
	commit := regexp.MustCompile(`(?m)^- berth: (\w+)$`).FindStringSubmatch(pages[1])
	day := regexp.MustCompile(`(?m)^\| [a-z]+-\d+ \| (\d{4}-\d\d-\d\d)T`).FindStringSubmatch(pages[1])
	if commit == nil || day == nil {
		t.Fatal("docs/conformance.md names no commit or no day")
	}
	when, err := time.Parse(time.DateOnly, day[1])
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("passed on %s, with berth %s", when.Format("2 January 2006"), commit[1]); !strings.Contains(pages[0], want) {
		t.Errorf("README.md does not have %q", want)
	}
}

// quote returns a figure by its key in a link's title.
func (r Report) quote(key string) (float64, error) {
	parts := strings.Split(key, "; ")
	if len(parts) < 3 || len(parts) > 4 {
		return 0, fmt.Errorf("want \"CASE; SYSTEM; FIGURE\", and \"; times %s\" for a ratio", r.Reference)
	}
	for _, g := range r.Groups {
		for _, f := range g.Figures {
			for _, row := range f.Rows {
				if g.Name != parts[0] || row.System != parts[1] || f.Name != parts[2] {
					continue
				}
				switch {
				case len(parts) == 3:
					return row.Median, nil
				case parts[3] == "times "+r.Reference && row.HasRatio:
					return row.Ratio.Value, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("the record has no such figure")
}

// rounded reports whether a number is a value rounded to the digits that it shows.
func rounded(shown string, value float64) bool {
	digits := strings.ReplaceAll(shown, ",", "")
	number, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return false
	}
	whole, decimals, point := strings.Cut(digits, ".")
	last := math.Pow10(-len(decimals))
	if !point {
		last = math.Pow10(len(whole) - len(strings.TrimRight(whole, "0")))
	}
	return math.Abs(number-value) <= 0.5000001*last
}

func TestRounded(t *testing.T) {
	for _, c := range []struct {
		shown string
		value float64
		want  bool
	}{
		{"2.1", 2.145, true}, {"2.1", 2.16, false}, {"1,860", 1859, true}, {"1,860", 1866, false}, {"0.40", 0.4049, true}, {"0.40", 0.41, false}, {"100", 140, true}, {"101", 102, false},
	} {
		if got := rounded(c.shown, c.value); got != c.want {
			t.Errorf("%s for %v: %v", c.shown, c.value, got)
		}
	}
}
