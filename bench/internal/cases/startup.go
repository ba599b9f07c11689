package cases

import (
	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// startup measures table V of the KSI paper: the date that the first container prints,
// minus the time of the submission. It also measures the time until the user sees that
// line, which needs no synchronized clocks, and the time from there to the end.
func startup() Case {
	return Case{
		Kind: plan.Kind{
			Name: "startup", Summary: "from the submission to the first container's output, and to the end", Hosts: 1,
			Seconds: func(map[string]string) float64 { return 0.2 },
		},
		Task: func(map[string]string, int, int) (system.Task, error) {
			return system.Task{Alone: true, Args: []string{"date", "+%s.%N"}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			first, err := deliver.ReadTime(out.Stdout)
			if err != nil {
				return nil, err
			}
			values := []record.Value{
				{Name: "first container", Unit: "s", Better: lower, Value: first.Sub(out.Submitted).Seconds()},
				{Name: "first output", Unit: "s", Better: lower, Value: out.First.Sub(out.Submitted).Seconds()},
				{Name: "output to end", Unit: "s", Better: lower, Value: out.Ended.Sub(out.First).Seconds()},
			}
			// The processor time of an existing cluster is unknown.
			if out.Step.CPUSeconds > 0 {
				values = append(values, record.Value{Name: "CPU time", Unit: "s", Better: lower, Value: out.Step.CPUSeconds})
			}
			return values, nil
		},
	}
}
