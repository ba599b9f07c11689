package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
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
	// Case and Parameters say which trials stand for it, and Figure which of their
	// figures, where not all have it.
	Case       string            `yaml:"case"`
	Parameters map[string]string `yaml:"parameters"`
	Figure     string            `yaml:"figure"`
	// System is whose trials they are, as the plans that come along call it; empty: any.
	System string `yaml:"system"`
	// Tuned: of trials under a link with a tuning profile.
	Tuned bool `yaml:"tuned"`
	// Note says in what it differs from the paper's.
	Note string `yaml:"note"`
	// Reason is why the bench does not measure it, where it does not.
	Reason string `yaml:"reason"`
	// Link is where in the report it is, if it was measured.
	Link string `yaml:"-"`
}

// papers are all of the papers' figures and tables, with what there is of each.
func papers(lines []record.Line) (all []Paper, err error) {
	if err := yaml.Unmarshal(papersFile, &all); err != nil {
		return nil, fmt.Errorf("read the list of the papers' figures: %w", err)
	}
	for i, p := range all {
		link, kind, tuned := "", kindOf(nil), map[string]bool{}
		for _, line := range lines {
			if s := line.Session; s != nil {
				link = ""
				if kind, err = kinds(s.Plan); err != nil {
					return nil, fmt.Errorf("read the plan %s of the records: %w", s.Name, err)
				}
				if s.Link != nil {
					link = s.Link.Is
				}
			}
			profile := profileOf(link)
			if p.Tuned && profile == "" {
				continue
			}
			if t := line.Trial; t != nil && p.stands(t) {
				all[i].Link = cmp.Or(all[i].Link, anchor(t.Case))
				if !p.Tuned {
					break
				}
				tuned[profile] = true
			}
			if u := line.Unmeasured; u != nil && p.System != "" && u.System == p.System && (u.Case == "" || kind.of(u.Case) == p.Case) {
				all[i].Reason = u.Reason
			}
		}
		if len(tuned) > 0 {
			found := "under " + strings.Join(slices.Sorted(maps.Keys(tuned)), ", ")
			all[i].Note = strings.TrimPrefix(p.Note+"; "+found, "; ")
		}
		if all[i].Link == "" && all[i].Reason == "" {
			all[i].Reason = "the plan has no such case, or all of its trials failed"
		}
	}
	return all, nil
}

// profileOf is the tuning profile of a link, as records say it; nothing where nothing is
// changed.
func profileOf(link string) string {
	for _, part := range strings.Split(link, "; ") {
		if name, is := strings.CutPrefix(part, "profile "); is && name != "default" {
			return name
		}
	}
	return ""
}

// kindOf has the kinds of a plan's cases, by the cases' names without what a matrix or a
// link adds.
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

// of is the kind of a case.
func (k kindOf) of(name string) string {
	base, _, _ := strings.Cut(name, " ")
	return cmp.Or(k[base], base)
}

// stands tells whether a trial stands for a paper's figure.
func (p Paper) stands(t *record.Trial) bool {
	if p.Case == "" || t.Kind != p.Case || t.Phase != record.Run || p.System != "" && t.System != p.System || !matches(t.Parameters, p.Parameters) {
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
