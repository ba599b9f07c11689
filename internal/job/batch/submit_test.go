package batch

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writer calls a function for what is written.
type writer func()

func (w writer) Write(text []byte) (int, error) {
	w()
	return len(text), nil
}

// A plugin or a wrapper of sbatch may leave a process that keeps the output open.
func TestSubmitDoesNotWaitForProcessesOfSbatch(t *testing.T) {
	for end, want := range map[string]string{"echo 100": "100", "echo 'no answer' >&2; wait": ""} {
		dir := t.TempDir()
		path := filepath.Join(dir, "sbatch")
		if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+dir+"/child\n"+end+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			child, _ := os.ReadFile(filepath.Join(dir, "child"))
			if err := exec.Command("kill", strings.TrimSpace(string(child))).Run(); err != nil {
				t.Errorf("the process of sbatch has ended: %v", err)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		job, err := Submit(ctx, path, Submission{Stdout: io.Discard, Stderr: writer(cancel)})
		if job.ID != want || (want == "") != errors.Is(err, context.Canceled) {
			t.Errorf("%s: %+v, %v", end, job, err)
		}
	}
}
