package slurm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestJobOfCgroupIsFound(t *testing.T) {
	for groups, want := range map[string]uint32{
		"11:memory:/slurm/uid_1001/job_7/step_extern/task_4294967295\n1:name=systemd:/daemons\n0::/daemons\n": 7,
		"12:devices:/\n11:memory:/slurm_n1/uid_1001/job_4294967295/step_extern\n":                             4294967295,
		"0::/system.slice/slurmstepd.scope/job_8/step_extern/user/task_special\n":                             8,
		"0::/user.slice/job_x/job_/job_-1/job_4294967296/job\n":                                               0,
		"": 0,
	} {
		if job := JobOfGroups(groups); job != want {
			t.Errorf("in %q: job %d, want %d", groups, job, want)
		}
	}
}

func TestHostBelongsToClusterWithItsConfiguration(t *testing.T) {
	here := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	knows := func(context.Context, ...string) ([]byte, error) { return []byte("localhost\n"), nil }
	unknown := func(context.Context, ...string) ([]byte, error) {
		return nil, errors.New("fatal: Could not establish a configuration source")
	}
	for _, c := range []struct {
		what  string
		files []string
		ask   Ask
		want  bool
	}{
		{"a file", []string{"", "/nowhere", here}, unknown, true},
		{"a place that only the commands know", []string{"/nowhere"}, knows, true},
		{"commands without a configuration", []string{"", "/nowhere", filepath.Dir(here)}, unknown, false},
	} {
		if got := onCluster(t.Context(), c.files, c.ask); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	none := func(ctx context.Context, command ...string) ([]byte, error) {
		return AskSlurm(ctx, slices.Concat([]string{"/nowhere/scontrol"}, command[1:])...)
	}
	if onCluster(t.Context(), nil, none) {
		t.Error("a host without Slurm's commands belongs to a cluster")
	}
}
