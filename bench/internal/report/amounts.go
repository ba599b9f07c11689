package report

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

//go:embed amounts.yaml
var amountsFile []byte //nolint:gochecknoglobals // the only way to embed

// amountOf are the parameters that say how much of a case a run has, by kinds: how
// long, how large, how many.
var amountOf = map[string][]string{ //nolint:gochecknoglobals // a constant
	"bandwidth":     {"seconds", "length", "streams"},
	"cpu":           {"seconds"},
	"hpl":           {"size", "nodes"},
	"latency":       {"seconds", "bytes"},
	"lazy":          {"rate", "tier"},
	"memory":        {"seconds", "cache"},
	"mpi-init":      {"steps", "nodes"},
	"patch-tuesday": {"rate", "versions"},
	"storage":       {"size", "on"},
}

// ofRuns is the name of the number of trials among amounts.
const ofRuns = "runs"

// inPapers are the papers' amounts, by paper and case.
type inPapers map[[2]string]map[string]string

func readAmounts() (inPapers, error) {
	var list []struct {
		Paper   string            `yaml:"paper"`
		Case    string            `yaml:"case"`
		Amounts map[string]string `yaml:"amounts"`
	}
	if err := yaml.Unmarshal(amountsFile, &list); err != nil {
		return nil, fmt.Errorf("read the papers' amounts: %w", err)
	}
	all := inPapers{}
	for _, one := range list {
		all[[2]string{one.Paper, one.Case}] = one.Amounts
	}
	return all, nil
}

// has is what there is of a paper's figure in records.
type has struct {
	systems, links []string
	names          []string
	amounts        map[string][]string
	// runs are the trials, by system, case and link.
	runs map[[3]string]int
}

func (h *has) note(p Paper, t *record.Trial, link string) {
	once(&h.systems, t.System)
	once(&h.links, link)
	for _, name := range slices.Concat(strings.Fields(p.Vary), amountOf[t.Kind]) {
		if t.Parameters[name] == "" || p.Parameters[name] != "" {
			continue
		}
		if h.amounts == nil {
			h.amounts = map[string][]string{}
		}
		once(&h.names, name)
		values := h.amounts[name]
		once(&values, t.Parameters[name])
		h.amounts[name] = values
	}
	if h.runs == nil {
		h.runs = map[[3]string]int{}
	}
	h.runs[[3]string{t.System, t.Case, link}]++
}

func once(all *[]string, one string) {
	if one != "" && !slices.Contains(*all, one) {
		*all = append(*all, one)
	}
}

// words say it, and what the paper has more, or less, of.
func (h *has) words(paper map[string]string) string {
	if h.runs == nil {
		return ""
	}
	beside := func(name, is string) string {
		if of := paper[name]; of != "" && of != is {
			return " (in the paper: " + of + ")"
		}
		return ""
	}
	parts := []string{"on " + strings.Join(sorted(h.systems), ", ")}
	if h.links != nil {
		parts = append(parts, "under "+strings.Join(sorted(h.links), ", "))
	}
	for _, name := range h.names {
		is := strings.Join(sorted(h.amounts[name]), ", ")
		parts = append(parts, name+"="+is+beside(name, is))
	}
	least, most := 0, 0
	for _, n := range h.runs {
		if least == 0 || n < least {
			least = n
		}
		most = max(most, n)
	}
	runs := strconv.Itoa(least)
	if most > least {
		runs += " to " + strconv.Itoa(most)
	}
	word := " runs"
	if runs == "1" {
		word = " run"
	}
	return strings.Join(append(parts, runs+word+beside(ofRuns, runs)), "; ")
}
