package launch

import (
	"sync/atomic"
	"testing"

	"berth.dev/berth/internal/base/rundir"
)

func TestEpilogWaitsForRunsOfItsStep(t *testing.T) {
	base := t.TempDir()
	env := map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
	getenv := func(name string) string { return env[name] }
	own, err := rundir.Create(base, runID(getenv))
	if err != nil {
		t.Fatal(err)
	}
	var ended atomic.Bool
	done := make(chan bool)
	go func() {
		awaitStep(t.Context(), getenv, []string{base})
		done <- ended.Load()
	}()
	ended.Store(true)
	own.Lock.Close()
	if !<-done {
		t.Error("it did not wait")
	}
}
