package cases

import (
	"encoding/json"
	"fmt"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/system"
)

// hosts returns the parameter for the number of a case's hosts.
func hosts(otherwise string) plan.Parameter {
	return plan.Parameter{Name: "nodes", Default: otherwise, Help: "hosts", Check: positive}
}

func hostsFor(p map[string]string) int { return int(number(p, "nodes")) }

// requirements checks RQ1 to RQ3 of the KSI paper.
func requirements() Case {
	return Case{
		Kind: plan.Kind{
			Name: "requirements", Summary: "RQ1 to RQ3 of the KSI paper as checks that are executed: kubectl, no root, several machines", Hosts: 1,
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

// readSequence reads the result of a sequence beside a cluster.
func readSequence(out system.Output) (r sequence.Result, err error) {
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil {
		return r, fmt.Errorf("read what was done beside: %w", err)
	}
	return r, nil
}
