package cli

import (
	"errors"
	"slices"
	"testing"
)

func TestJobAndCommandOfRun(t *testing.T) {
	for _, c := range []struct {
		args    []string
		dash    int
		job     string
		command []string
		wrong   bool
	}{
		{nil, -1, "", nil, false},
		{[]string{"sh", "-c", "exit"}, 0, "", []string{"sh", "-c", "exit"}, false},
		{[]string{"12"}, 0, "", []string{"12"}, false},
		{[]string{"12"}, -1, "12", nil, false},
		{[]string{"12_3", "sh", "4"}, 1, "12_3", []string{"sh", "4"}, false},
		{[]string{"12.0", "sh"}, 1, "12.0", []string{"sh"}, false},
		{[]string{"local", "sh"}, 1, "local", []string{"sh"}, false},
		{[]string{"script.sh"}, -1, "", nil, true},
		{[]string{"12", "13"}, -1, "", nil, true},
		{[]string{"mine"}, -1, "", nil, true},
	} {
		job, command, err := splitRun(c.args, c.dash)
		var usage *usageError
		if job != c.job || !slices.Equal(command, c.command) || errors.As(err, &usage) != c.wrong {
			t.Errorf("%q: job %q, command %q, %v", c.args, job, command, err)
		}
	}
}

func TestVariableNamesJobOnlyOutsideAllocation(t *testing.T) {
	for _, c := range []struct {
		flags           runFlags
		variable, slurm string
		want            string
	}{
		{runFlags{}, "", "", ""},
		{runFlags{}, "12", "", "12"},
		{runFlags{}, "local", "", ""},
		{runFlags{}, "12", "13", ""}, // the script of a job that was submitted by such a shell
		{runFlags{job: "14"}, "12", "13", "14"},
		{runFlags{job: "local"}, "12", "", "local"},
		{runFlags{own: true}, "12", "", ""},
		{runFlags{here: true}, "12", "", ""},
	} {
		getenv := func(name string) string {
			return map[string]string{"BERTH_JOB": c.variable, "SLURM_JOB_ID": c.slurm}[name]
		}
		if got := c.flags.target(getenv); got != c.want {
			t.Errorf("%+v, BERTH_JOB=%s, SLURM_JOB_ID=%s: job %q, want %q", c.flags, c.variable, c.slurm, got, c.want)
		}
	}
}
