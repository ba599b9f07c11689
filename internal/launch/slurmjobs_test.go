package launch

import (
	"bufio"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/supervisor"
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

// The user reads why no Slurm jobs are served.
func TestReasonOfSlurmJobsIsSaid(t *testing.T) {
	said, log := io.Pipe()
	s := supervisor.New(slog.New(slog.NewTextHandler(log, nil)), func(string) {}, func(err error) { t.Error(err) })
	listener, _, err := loopbackListener()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	role := slurmJobsRole(s, slurmJobsConfig{Kubeconfig: []byte("{")}, listener)
	role.Log = filepath.Join(t.TempDir(), "log")
	if err := s.Add(role); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "the run goes on without it") {
		if !strings.Contains(lines.Text(), "starting it again") {
			t.Error(lines.Text())
		}
	}
	if !strings.Contains(lines.Text(), "slurm-jobs ended: exit code 1: read kubeconfig: ") {
		t.Error(lines.Text())
	}
	s.EndOutside()
}
