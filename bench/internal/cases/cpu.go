package cases

import (
	"fmt"
	"regexp"
	"strconv"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// cpu measures figure 3 of the KSI paper.
func cpu() Case {
	return Case{
		Kind: plan.Kind{
			Name: "cpu", Summary: "prime numbers by sysbench, on all cores of the trial", Hosts: 1,
			Parameters: []plan.Parameter{
				{Name: "max-prime", Default: "20000", Help: "numbers up to here, for one event", Check: positive},
				{Name: "seconds", Default: "10", Help: "how long", Check: positive},
			},
			Seconds: func(parameters map[string]string) float64 { return number(parameters, "seconds") },
		},
		Task: func(parameters map[string]string, cpus, _ int) (system.Task, error) {
			return system.Task{Window: true, Args: []string{
				"sysbench", "cpu", "--threads=" + strconv.Itoa(cpus), "--time=" + parameters["seconds"],
				"--cpu-max-prime=" + parameters["max-prime"], "run",
			}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			rate, err := find(out.Stdout, `events per second:\s+([0-9.]+)`)
			if err != nil {
				return nil, err
			}
			events, err := find(out.Stdout, `total number of events:\s+([0-9]+)`)
			if err != nil {
				return nil, err
			}
			values := []record.Value{{Name: "events per second", Unit: "1/s", Better: higher, Value: rate}}
			return append(values, perUnit(out, events/1000, "1000 events")...), nil
		},
	}
}

// find returns the number that the group of a pattern matches. It returns an error if the
// text does not match.
func find(text, pattern string) (float64, error) {
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("the program's output has no %q", pattern)
	}
	return strconv.ParseFloat(match[1], 64)
}

// perUnit returns a trial's CPU time divided by its work, units. The CPU time is that of
// the whole machine while the program ran. If this is unknown, it is the CPU time of the
// trial on the first host, including the start of a cluster. If both are unknown, perUnit
// returns no figure.
func perUnit(out system.Output, units float64, unit string) []record.Value {
	if w := out.Step.Window; w != nil && units != 0 {
		return []record.Value{{Name: "machine's CPU time per " + unit, Unit: "s", Better: lower, Value: w.Busy / units}}
	}
	if out.Step.CPUSeconds == 0 || units == 0 {
		return nil
	}
	return []record.Value{{Name: "CPU time per " + unit, Unit: "s", Better: lower, Value: out.Step.CPUSeconds / units}}
}
