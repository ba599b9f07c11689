package allocation

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/job/slurm"
)

func TestCPUSet(t *testing.T) {
	own, err := affinity()
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	job := &Allocation{Job: slurm.Job{ID: "7", NodeName: "n1"}, log: slog.New(slog.DiscardHandler),
		Ask: func(context.Context, ...string) ([]byte, error) { asked++; return nil, errors.New("no answer") }}
	for name, c := range map[string]struct {
		job          *Allocation
		count, nodes int
		want         string
		asked        int
	}{
		"all that this process has":   {nil, own.Size(), 1, own.String(), 0},
		"a step that Slurm has bound": {job, own.Size(), 1, own.String(), 0},
		"several nodes on the host":   {job, own.Size(), 2, "", 0},
		"a quota":                     {nil, own.Size() + 1, 1, "", 0},
		"scontrol does not say":       {job, own.Size() + 1, 1, "", 1},
	} {
		asked = 0
		got := c.job.CPUSet(t.Context(), probe.CPUs{Count: c.count}, c.nodes)
		if got != c.want || asked != c.asked {
			t.Errorf("%s: %q after %d questions, want %q after %d", name, got, asked, c.want, c.asked)
		}
	}
}
