package cases

import (
	"encoding/json"
	"fmt"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/system"
)

// hosts returns the parameter "nodes", the number of hosts of a case, with a default.
func hosts(standard string) plan.Parameter {
	return plan.Parameter{Name: "nodes", Default: standard, Help: "hosts", Check: positive}
}

// hostsFor returns the number of hosts in a case's parameters.
func hostsFor(p map[string]string) int { return int(number(p, "nodes")) }

// requirements returns the case that checks RQ1 to RQ3 of the KSI paper.
func requirements() Case {
	return Case{
		Kind: plan.Kind{
			Name: "requirements", Summary: "checks of RQ1 to RQ3 of the KSI paper: kubectl, no root, several machines", Hosts: 1,
			HostsFor: hostsFor, Parameters: []plan.Parameter{hosts("2")},
			Seconds: func(map[string]string) float64 { return 5 },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Sequence: &system.Sequence{Cluster: sequence.Requirements, Nodes: hostsFor(p)}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			r, err := readSequence(out)
			return r.Values, err
		},
	}
}

// readSequence returns the result that a sequence has printed.
func readSequence(out system.Output) (r sequence.Result, err error) {
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil {
		return r, fmt.Errorf("read the result of the sequence: %w", err)
	}
	return r, nil
}
