package report

import (
	_ "embed"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

//go:embed rubric.yaml
var rubricFile []byte //nolint:gochecknoglobals // the only way to embed

// Grade is a question of the KSI paper that a person answers, with the evidence
// to look at.
type Grade struct {
	Question string   `yaml:"question"`
	Look     []string `yaml:"look"`
}

// Scale explains one grade in the paper's words.
type Scale struct {
	Grade string `yaml:"grade"`
	Means string `yaml:"means"`
}

// Rubric holds the questions for people to grade, and the scale.
type Rubric struct {
	Questions []Grade `yaml:"questions"`
	Scale     []Scale `yaml:"scale"`
}

// Answer is the result of one question of one case on one system.
type Answer struct {
	System, Case, Question string
	// Yes of Of trials answered it with yes.
	Yes, Of int
	Detail  string
}

// Says returns the answer in words. It is no if it was no in one of the trials.
func (a Answer) Says() string {
	switch a.Yes {
	case a.Of:
		return "yes"
	case 0:
		return "no"
	}
	return fmt.Sprintf("no: %d of %d times yes", a.Yes, a.Of)
}

// answer adds a value that answers a question.
func (r *Report) answer(system, caseName string, v record.Value) {
	i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.System == system && a.Case == caseName && a.Question == v.Name })
	if i < 0 {
		i = len(r.Answers)
		r.Answers = append(r.Answers, Answer{System: system, Case: caseName, Question: v.Name})
	}
	a := &r.Answers[i]
	a.Of++
	if v.Value == 1 {
		a.Yes++
	}
	// The detail of a no is the reason, so keep it.
	if a.Detail == "" || v.Value == 0 {
		a.Detail = v.Detail
	}
}

// rubric returns the paper's other questions, for a report that has answers.
func rubric() (*Rubric, error) {
	var rubric Rubric
	if err := yaml.Unmarshal(rubricFile, &rubric); err != nil {
		return nil, fmt.Errorf("read the rubric: %w", err)
	}
	return &rubric, nil
}
