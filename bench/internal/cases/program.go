package cases

import (
	"errors"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/system"
)

// program measures whatever another program prints.
func program() Case {
	return Case{
		Kind: plan.Kind{
			Name: "program", Summary: "a program that measures something itself, called where the bench is, on the system bare", Hosts: 1,
			Parameters: []plan.Parameter{
				{Name: "command", Help: "for a shell; prints a figure as JSON in each line: {\"name\": ..., \"unit\": ..., \"better\": ..., \"value\": ...}", Check: given},
				{Name: "nodes", Help: "given to it as NODES, and what curves are by", Check: func(string) error { return nil }},
				{Name: "stands-for", Help: "which of the papers' figures, by its name in the report's list: network-setup", Check: func(string) error { return nil }},
				{Name: "seconds", Default: "60", Help: "about how long it takes, for estimates", Check: positive},
			},
			Seconds: func(p map[string]string) float64 { return number(p, "seconds") },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Sequence: &system.Sequence{Job: sequence.Program, Nodes: 1, Parameters: p}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			r, err := readSequence(out)
			return r.Values, err
		},
	}
}

func given(value string) error {
	if value == "" {
		return errors.New("say which")
	}
	return nil
}
