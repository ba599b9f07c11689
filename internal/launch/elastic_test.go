package launch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/supervisor"
)

// wordArg starts the test program as a role that writes the word of its end to a file.
const wordArg = "test-word-role"

func recordWord() int {
	var path string
	files, err := linux.ReceiveFiles(&path, fdLife)
	if err != nil {
		return 1
	}
	word, err := io.ReadAll(files[fdLife])
	if err != nil || os.WriteFile(path, append([]byte("word "), word...), 0o600) != nil {
		return 1
	}
	return 0
}

// The role learns at its end whether the cluster's job starts again. It is not started again, and
// the end of the run does not wait for one that takes long after a signal.
func TestPilotRoleLearnsHowTheClusterEnds(t *testing.T) {
	for _, moves := range []bool{false, true} {
		var said strings.Builder
		s := supervisor.New(slog.New(slog.NewTextHandler(&said, nil)), func(string) {}, func(err error) { t.Error(err) })
		path := filepath.Join(t.TempDir(), "word")
		role, end := ownRole(s, "elastic", wordArg, path, nil)
		role.Log = filepath.Join(t.TempDir(), "log")
		if err := s.Add(role); err != nil {
			t.Fatal(err)
		}
		r := &run{endPilotRole: end}
		r.moves.Store(moves)
		awaitEnd(t.Context(), r.cancelPilots(), time.Minute)
		r.moves.Store(!moves) // the first call counts
		r.pilotsHadTime = true
		if err := r.endPilots(); err != nil {
			t.Fatal(err)
		}
		s.EndOutside()
		want := "word "
		if moves {
			want += returnsWord
		}
		if got, err := os.ReadFile(path); string(got) != want || said.Len() > 0 {
			t.Errorf("moves %v: the role heard %q, %v; said %s", moves, got, err, &said)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	awaitEnd(ctx, make(chan struct{}), time.Hour)
	awaitEnd(t.Context(), nil, time.Hour)
}

func TestOptionsOfPilots(t *testing.T) {
	spec := cluster.Spec{StateDir: "/scratch"}
	spec.Network.Ports = "21000-21999"
	for returns, want := range map[bool]string{
		false: "--grace=1m0s --port-range=21000-21999 --state-dir=/scratch",
		true:  "--grace=1m0s --node-wait=10m0s --port-range=21000-21999 --state-dir=/scratch",
	} {
		if got := strings.Join(joinOptions(spec, returns), " "); got != want {
			t.Errorf("the cluster may start again: %v: got %s, want %s", returns, got, want)
		}
	}
}

// A program replaces scontrol, because no real job starts again here.
func TestJobThatReturns(t *testing.T) {
	t.Setenv("SLURM_RESTART_COUNT", "1")
	for said, want := range map[string]bool{
		"JobState=PENDING Restarts=2 EndTime=Unknown":               true,
		"JobState=RUNNING Restarts=1 EndTime=Unknown":               false,
		"JobState=CANCELLED Restarts=1 EndTime=2026-01-01T12:00:00": false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "scontrol"), fmt.Appendf(nil, "#!/bin/sh\necho JobId=7 %s\n", said), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		if got := jobReturns(t.Context(), "7"); got != want {
			t.Errorf("%s: returns: %v", said, got)
		}
	}
}
