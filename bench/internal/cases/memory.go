package cases

import (
	"fmt"
	"regexp"
	"strconv"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// memory measures figure 4 of the KSI paper with stress-ng. It has the kernels of
// STREAM, but its results must not be called STREAM results, because it sizes its
// arrays itself: four times the cache.
func memory() Case {
	return Case{
		Kind: plan.Kind{
			Name: "memory", Summary: "memory bandwidth by stress-ng's stream, one instance on each core", Hosts: 1,
			Parameters: []plan.Parameter{
				{Name: "seconds", Default: "10", Help: "how long", Check: positive},
				{Name: "cache", Default: "32m", Help: "size of the last cache, which determines the three arrays of four times that size", Check: size},
			},
			Seconds: func(parameters map[string]string) float64 { return number(parameters, "seconds") },
		},
		Task: func(parameters map[string]string, cpus, _ int) (system.Task, error) {
			// By default stress-ng prints its figures on standard error, where srun and pods
			// print, too.
			return system.Task{Window: true, Args: []string{
				"stress-ng", "--stdout", "--temp-path", "/tmp", "--stream", strconv.Itoa(cpus), "--stream-l3-size", parameters["cache"],
				"--timeout", parameters["seconds"], "--metrics",
			}}, nil
		},
		Read: func(parameters map[string]string, out system.Output) ([]record.Value, error) {
			rates := regexp.MustCompile(`memory rate: ([0-9.]+) MB read/sec, ([0-9.]+) MB write/sec`).FindAllStringSubmatch(out.Stdout, -1)
			if len(rates) == 0 {
				return nil, fmt.Errorf("stress-ng printed no memory rate: give it more seconds")
			}
			total := 0.0
			for _, rate := range rates {
				for _, text := range rate[1:] {
					v, err := strconv.ParseFloat(text, 64)
					if err != nil {
						return nil, fmt.Errorf("read a memory rate: %w", err)
					}
					total += v
				}
			}
			values := []record.Value{{Name: "read and written", Unit: "MB/s", Better: higher, Value: total}}
			return append(values, perUnit(out, total/1000*number(parameters, "seconds"), "GB")...), nil
		},
	}
}

// size returns an error unless a value is a number of bytes with a unit, such as 8G.
func size(value string) error {
	if !regexp.MustCompile(`^[1-9][0-9]*[kKmMgG]$`).MatchString(value) {
		return fmt.Errorf("give a size such as 256k, 32m or 8G")
	}
	return nil
}
