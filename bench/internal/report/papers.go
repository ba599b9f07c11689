package report

import (
	_ "embed"
	"fmt"

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
	// Case and Parameters say which trials stand for it.
	Case       string            `yaml:"case"`
	Parameters map[string]string `yaml:"parameters"`
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
		for _, line := range lines {
			if t := line.Trial; t != nil && p.Case != "" && t.Kind == p.Case && len(t.Values) > 0 && t.Phase == record.Run && matches(t.Parameters, p.Parameters) {
				all[i].Link = anchor(t.Case)
				break
			}
		}
		if all[i].Link == "" && p.Reason == "" {
			all[i].Reason = "the plan has no such case, or all of its trials failed"
		}
	}
	return all, nil
}

func matches(has, wanted map[string]string) bool {
	for name, value := range wanted {
		if has[name] != value {
			return false
		}
	}
	return true
}
