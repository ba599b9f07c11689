package launch

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
)

// A run in salloc's shell may belong on the job's cluster. If Slurm does not tell, it must
// not start another one.
func TestRunWithoutAnswerOfSlurmStartsNoCluster(t *testing.T) {
	programs := t.TempDir()
	t.Setenv("PATH", programs)
	options := Options{Getenv: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler)}
	job := slurm.Job{ID: "7", Place: slurm.PlaceShell}
	for script, want := range map[string]bool{"exit 0": false, "echo timed out >&2; exit 1": true} {
		if err := os.WriteFile(filepath.Join(programs, "squeue"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		used, _, err := usePersistent(t.Context(), options, job, true)
		if used != want || (err != nil) != want || want && exitcode.Of(err) != exitcode.Unavailable {
			t.Errorf("squeue with %q: used %v, %v", script, used, err)
		}
	}
}
