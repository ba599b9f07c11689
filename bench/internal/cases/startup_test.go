package cases

import (
	"slices"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// TestStartupWithoutProcessorTime: the processor time of an existing cluster is unknown,
// which differs from zero.
func TestStartupWithoutProcessorTime(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	out := system.Output{Stdout: "1800000001.5\n", Submitted: at, First: at.Add(2 * time.Second), Ended: at.Add(3 * time.Second)}
	for seconds, want := range map[float64][]string{
		0:   {"first container", "first output", "output to end"},
		0.5: {"first container", "first output", "output to end", "CPU time"},
	} {
		out.Step = record.Step{CPUSeconds: seconds}
		values, err := startup().Read(nil, out)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, v := range values {
			names = append(names, v.Name)
		}
		if !slices.Equal(names, want) || values[0] != (record.Value{Name: "first container", Unit: "s", Better: lower, Value: 1.5}) {
			t.Errorf("with %g s: %+v", seconds, values)
		}
	}
}
