package cases

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// startup is KSI's table V: the date that the first container prints, less the
// time of the submission. Beside it the time until that line is where the user
// is, which needs no clocks that agree, and the time from there to the end.
func startup() Case {
	return Case{
		Kind: plan.Kind{
			Name: "startup", Summary: "from the submission to the first container's output, and to the end", Hosts: 1,
			Seconds: func(map[string]string) float64 { return 0.2 },
		},
		Task: func(map[string]string, int, int) (system.Task, error) {
			return system.Task{Args: []string{"date", "+%s.%N"}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			text := strings.TrimSpace(out.Stdout)
			seconds, fraction, _ := strings.Cut(text, ".")
			s, err1 := strconv.ParseInt(seconds, 10, 64)
			ns, err2 := strconv.ParseInt(fraction, 10, 64)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("read the container's date: %q is none", text)
			}
			return []record.Value{
				{Name: "first container", Unit: "s", Better: lower, Value: time.Unix(s, ns).Sub(out.Submitted).Seconds()},
				{Name: "first output", Unit: "s", Better: lower, Value: out.First.Sub(out.Submitted).Seconds()},
				{Name: "output to end", Unit: "s", Better: lower, Value: out.Ended.Sub(out.First).Seconds()},
				{Name: "CPU time", Unit: "s", Better: lower, Value: out.Step.CPUSeconds},
			}, nil
		},
	}
}
