package report

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

//go:embed amounts.yaml
var amountsFile []byte //nolint:gochecknoglobals // the only way to embed

// amountOf lists the parameters of each kind of case that define the amounts of a run:
// durations, sizes and numbers.
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

// runsAmount is the amount that holds the number of trials.
const runsAmount = "runs"

// paperAmounts holds the amounts that the papers state, by paper and case.
type paperAmounts map[[2]string]map[string]string

func readAmounts() (paperAmounts, error) {
	var list []struct {
		Paper   string            `yaml:"paper"`
		Case    string            `yaml:"case"`
		Amounts map[string]string `yaml:"amounts"`
	}
	if err := yaml.Unmarshal(amountsFile, &list); err != nil {
		return nil, fmt.Errorf("read the papers' amounts: %w", err)
	}
	all := paperAmounts{}
	for _, one := range list {
		all[[2]string{one.Paper, one.Case}] = one.Amounts
	}
	return all, nil
}

// recordedAmounts holds the amounts of the recorded trials for one figure of a paper.
type recordedAmounts struct {
	systems []string
	// names holds the names of the amounts.
	names []string
	// cells holds the values of each amount by its name, for a system under a link.
	cells map[linkedSystem]map[string]map[string]bool
	// runs counts the trials, by system, case and link.
	runs map[[3]string]int
}

// linkedSystem is a system under a link.
type linkedSystem struct{ system, link string }

// add adds the amounts of a trial that counts for the paper's figure.
func (h *recordedAmounts) add(p Paper, t *record.Trial, link string) {
	addOnce(&h.systems, t.System)
	if h.runs == nil {
		h.runs, h.cells = map[[3]string]int{}, map[linkedSystem]map[string]map[string]bool{}
	}
	h.runs[[3]string{t.System, t.Case, link}]++
	at := linkedSystem{t.System, link}
	if h.cells[at] == nil {
		h.cells[at] = map[string]map[string]bool{}
	}
	for _, name := range slices.Concat(strings.Fields(p.Vary), amountOf[t.Kind]) {
		if t.Parameters[name] == "" || p.Parameters[name] != "" {
			continue
		}
		addOnce(&h.names, name)
		if h.cells[at][name] == nil {
			h.cells[at][name] = map[string]bool{}
		}
		h.cells[at][name][t.Parameters[name]] = true
	}
}

// addOnce appends a text that is neither empty nor in the list yet.
func addOnce(all *[]string, one string) {
	if one != "" && !slices.Contains(*all, one) {
		*all = append(*all, one)
	}
}

// describe returns the amounts of the trials as text, with the paper's amount beside each
// that differs. differ reports whether there is such an amount. Systems and links share an
// entry if they have the same amounts, so that each combination in the text has a trial.
func (h *recordedAmounts) describe(paper map[string]string) (text string, differ bool) {
	if h.runs == nil {
		return "", false
	}
	beside := func(name, is string) string {
		switch of := paper[name]; of {
		case is:
			return ""
		case "":
			differ = true
			return " (the paper does not say)"
		default:
			differ = true
			return " (in the paper: " + of + ")"
		}
	}
	// systems has the keys amounts and link, and links has the keys amounts and systems.
	systems, links := map[[2]string][]string{}, map[[2]string][]string{}
	for at := range h.cells {
		var amounts []string
		for _, name := range h.names {
			if is := strings.Join(sorted(slices.Collect(maps.Keys(h.cells[at][name]))), ", "); is != "" {
				amounts = append(amounts, name+"="+is+beside(name, is))
			}
		}
		key := [2]string{strings.Join(amounts, "; "), at.link}
		systems[key] = append(systems[key], at.system)
	}
	for key, on := range systems {
		group := [2]string{key[0], strings.Join(sorted(on), ", ")}
		links[group] = append(links[group], key[1])
	}
	var parts []string
	for group, under := range links {
		part := "on " + group[1]
		if names := sorted(under); names[0] != "" {
			part += " under " + strings.Join(names, ", ")
		}
		parts = append(parts, joined(part, group[0]))
	}
	slices.Sort(parts)
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
	return strings.Join(append(parts, runs+word+beside(runsAmount, runs)), "; "), differ
}
