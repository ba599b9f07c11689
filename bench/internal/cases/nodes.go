package cases

import (
	"errors"
	"time"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/system"
)

// scale measures the cost of a further node: a curve over the number of nodes,
// which a plan's matrix lists.
func scale() Case {
	return Case{
		Kind: plan.Kind{
			Name: "scale", Summary: "from the submission until all of so many nodes take pods, what that costs the first host, and the end", Hosts: 1,
			HostsFor: hostsFor, Parameters: []plan.Parameter{hosts("1")},
			Seconds: func(p map[string]string) float64 { return 1 + 0.3*number(p, "nodes") },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Sequence: &system.Sequence{Cluster: sequence.Nodes, Nodes: hostsFor(p), NoPods: true}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			r, err := readSequence(out)
			if err != nil {
				return nil, err
			}
			if r.At == 0 || r.Values == nil {
				return nil, errors.New("the result of the sequence has no time when all nodes were ready")
			}
			at := time.Unix(0, r.At)
			return append(r.Values,
				record.Value{Name: "all nodes take pods", Unit: "s", Better: lower, Value: at.Sub(out.Submitted).Seconds()},
				record.Value{Name: "from there to the end", Unit: "s", Better: lower, Value: out.Ended.Sub(at).Seconds()},
			), nil
		},
	}
}
