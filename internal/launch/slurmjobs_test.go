package launch

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
)

// Nothing starts on a host without Slurm's commands.
func TestSlurmJobsNeedSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	spec := cluster.Spec{Stay: true, SlurmJobs: true, NodesPerHost: 1}
	err := new(run).readInput(Options{Spec: spec})
	if exitcode.Of(err) != exitcode.Unavailable || !strings.Contains(err.Error(), "it needs Slurm's commands on this host") {
		t.Errorf("input was accepted with %v", err)
	}
}
