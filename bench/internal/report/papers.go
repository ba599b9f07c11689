package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

//go:embed papers.yaml
var papersFile []byte //nolint:gochecknoglobals // the only way to embed

// Paper is one figure or table of the papers.
type Paper struct {
	Paper string `yaml:"paper"`
	Item  string `yaml:"item"`
	What  string `yaml:"what"`
	// Case and Parameters select the trials for it, and Figure one of the trials'
	// figures if not all trials have it.
	Case       string            `yaml:"case"`
	Parameters map[string]string `yaml:"parameters"`
	Figure     string            `yaml:"figure"`
	// System names the system whose trials count, by its name in the plans of
	// this repository; empty: any. Or is another name of that system. Systems
	// names several systems; each one without a trial is reported.
	System  string   `yaml:"system"`
	Or      string   `yaml:"or"`
	Systems []string `yaml:"systems"`
	// Profile and Link select the trials' tuning profile and link; empty: any.
	Profile string `yaml:"profile"`
	Link    string `yaml:"link"`
	// Vary lists parameters whose values in the trials are reported, besides the
	// parameters in amountOf.
	Vary string `yaml:"vary"`
	// Plan names a plan that measures the figure.
	Plan string `yaml:"plan"`
	// Note names the differences from the paper's measurement, and the substitutes for
	// its programs.
	Note string `yaml:"note"`
	// Of maps each system that the paper compares to its substitutes here.
	Of map[string][]string `yaml:"of"`
	// Reason is the reason why the figure was not measured, or "".
	Reason string `yaml:"reason"`
	// At is the anchor of the figure's trials in the report, or "" if there are none.
	// Coverage compares these trials with the paper's measurement.
	At       string   `yaml:"-"`
	Coverage coverage `yaml:"-"`
	// Has describes the trials. Elsewhere reports whether the figure is missing because no
	// plan of the records has it.
	Has       string `yaml:"-"`
	Elsewhere bool   `yaml:"-"`
}

// Covered returns the papers' figures that the records have trials for.
func (r Report) Covered() (covered []Paper) {
	for _, p := range r.Papers {
		if p.At != "" {
			covered = append(covered, p)
		}
	}
	return covered
}

// papers returns all of the papers' figures and tables, with the trials for each.
func papers(lines []record.Line) (all []Paper, err error) {
	if err := yaml.Unmarshal(papersFile, &all); err != nil {
		return nil, fmt.Errorf("read the list of the papers' figures: %w", err)
	}
	stated, err := readAmounts()
	if err != nil {
		return nil, err
	}
	plans, tunings := map[string]bool{}, readTunings(lines)
	for i, p := range all {
		var now record.Link
		of, recorded, reasons := kindOf(nil), recordedAmounts{}, map[string]string{}
		var tuned profileState
		planned := false
		for _, line := range lines {
			if s := line.Session; s != nil {
				if of, err = kinds(s.Plan); err != nil {
					return nil, fmt.Errorf("read the plan %s of the records: %w", s.Name, err)
				}
				plans[s.Name] = true
				if now = (record.Link{}); s.Link != nil {
					now = *s.Link
				}
				planned = planned || p.under(now) && slices.Contains(slices.Collect(maps.Values(of)), p.Case) && p.among(s)
			}
			if t := line.Trial; t != nil && p.under(now) && p.counts(t) {
				all[i].At = cmp.Or(all[i].At, anchor(t.Case))
				recorded.add(p, t, now.Name)
				tuned = tunings[now.Name]
			}
			if u := line.Unmeasured; u != nil && (u.Case == "" || of.of(u.Case) == p.Case) {
				reasons[u.System] = u.Reason
			}
		}
		without := p.without(recorded.systems, reasons)
		amounts, differ := recorded.describe(stated[[2]string{p.Paper, p.Case}])
		switch {
		case len(p.Systems) > 1 && slices.Equal(recorded.systems, []string{"bare"}):
			all[i].At, all[i].Reason = "", "bare metal alone was; "+without
		case all[i].At != "":
			all[i].Coverage = p.judge(recorded.systems, differ, tuned)
			all[i].Has = joined(amounts, tuned.words(p.Parameters["protocol"]), without)
		case p.Reason == "" && reasons[p.System] != "":
			all[i].Reason = reasons[p.System]
		case p.Reason == "" && planned:
			all[i].Reason = "of this case no trial has succeeded that has the paper's parameters: see Not measured"
		case p.Reason == "":
			all[i].Elsewhere = true
			all[i].Reason = fmt.Sprintf("the plan %s has it, and %s not", p.Plan, strings.Join(slices.Sorted(maps.Keys(plans)), ", "))
		}
	}
	return all, nil
}

// Says returns the note and the description of the trials, if there are any.
func (p Paper) Says() string { return joined(p.Note, p.Has) }

// joined joins the parts that are not empty.
func joined(parts ...string) string { return joinedBy("; ", parts...) }

func joinedBy(by string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), by)
}

// sorted returns the values in order. It compares two numbers by value.
func sorted(values []string) []string {
	return slices.SortedFunc(slices.Values(values), func(a, b string) int {
		x, wrong := strconv.Atoi(a)
		y, err := strconv.Atoi(b)
		if wrong != nil || err != nil {
			return cmp.Compare(a, b)
		}
		return cmp.Compare(x, y)
	})
}

// without describes the paper's systems that have no trial, each with the reason. It returns
// "" if all have trials. has lists the systems with trials.
func (p Paper) without(has []string, reasons map[string]string) string {
	var missing []string
	for _, system := range slices.Sorted(maps.Keys(p.Of)) {
		if p.has(system, has) {
			continue
		}
		for _, substitute := range p.Of[system] {
			if reason := reasons[substitute]; reason != "" {
				system += " (" + reason + ")"
				break
			}
		}
		missing = append(missing, system)
	}
	if missing == nil {
		return ""
	}
	return "without " + strings.Join(missing, ", ")
}

// under reports whether trials under the link count.
func (p Paper) under(l record.Link) bool {
	return (p.Profile == "" || profileOf(l.Is) == p.Profile) && (p.Link == "" || l.Name == p.Link)
}

// among reports whether a session's plan has the system whose trials count. It returns true
// if every system counts, and if the plan's systems are unknown.
func (p Paper) among(s *record.Session) bool {
	var plan struct{ Systems []struct{ Name string } }
	if p.System == "" || yaml.Unmarshal([]byte(s.Plan), &plan) != nil || plan.Systems == nil {
		return true
	}
	return slices.ContainsFunc(plan.Systems, func(system struct{ Name string }) bool {
		name := s.System(system.Name)
		return name == p.System || p.Or != "" && name == p.Or
	})
}

// profileOf returns the tuning profile in a link's description in the records.
func profileOf(link string) string {
	for part := range strings.SplitSeq(link, "; ") {
		if name, is := strings.CutPrefix(part, "profile "); is {
			return name
		}
	}
	return ""
}

// kindOf maps the names of a plan's cases to their kinds. The names have no suffix of a
// matrix or link.
type kindOf map[string]string

func kinds(text string) (kindOf, error) {
	var plan struct {
		Cases []struct{ Name, Case string }
	}
	if err := yaml.Unmarshal([]byte(text), &plan); err != nil {
		return nil, err
	}
	all := kindOf{}
	for _, c := range plan.Cases {
		all[cmp.Or(c.Name, c.Case)] = c.Case
	}
	return all, nil
}

// of returns the kind of a case, whose name may have a suffix.
func (k kindOf) of(name string) string {
	base, _, _ := strings.Cut(name, " ")
	return cmp.Or(k[base], base)
}

// counts reports whether a trial counts for a paper's figure.
func (p Paper) counts(t *record.Trial) bool {
	if p.Case == "" || t.Kind != p.Case || t.Phase != record.Run || p.System != "" && t.System != p.System && (p.Or == "" || t.System != p.Or) || p.Systems != nil && !slices.Contains(p.Systems, t.System) && (t.System != "berth-overlay" || !slices.Contains(p.Systems, "berth")) || !matches(t.Parameters, p.Parameters) {
		return false
	}
	return slices.ContainsFunc(t.Values, func(v record.Value) bool { return p.Figure == "" || v.Name == p.Figure })
}

func matches(has, wanted map[string]string) bool {
	for name, value := range wanted {
		if has[name] != value {
			return false
		}
	}
	return true
}
