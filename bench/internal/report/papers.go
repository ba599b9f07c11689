package report

import (
	_ "embed"
	"fmt"
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
func papers(lines []record.Line) ([]Paper, error) {
	var all []Paper
	if err := yaml.Unmarshal(papersFile, &all); err != nil {
		return nil, fmt.Errorf("read the list of the papers' figures: %w", err)
	}
	for i, p := range all {
		link := ""
		for _, line := range lines {
			if s := line.Session; s != nil {
				link = ""
				if s.Link != nil {
					link = s.Link.Is
				}
			}
			if p.Tuned && !strings.Contains(link, "profile ") {
				continue
			}
			if t := line.Trial; t != nil && p.stands(t) {
				all[i].Link = anchor(t.Case)
				break
			}
			if u := line.Unmeasured; u != nil && p.System != "" && u.System == p.System && (u.Case == "" || u.Case == p.Case) {
				all[i].Reason = u.Reason
			}
		}
		if all[i].Link == "" && all[i].Reason == "" {
			all[i].Reason = "the plan has no such case, or all of its trials failed"
		}
	}
	return all, nil
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
