package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDownOutlastsFailingSqueue: berth down waits for the end of the step although squeue fails. A
// program replaces squeue, because the real one does not fail on demand.
func TestDownOutlastsFailingSqueue(t *testing.T) {
	for name, test := range map[string]struct{ answers, want string }{
		"busy":    {`1) echo "slurm_load_jobs error: Socket timed out" >&2; exit 1;; 2) echo "12.0|n1|` + upStep + `";; 3) exit 1;;`, "4"},
		"job end": {`1) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;`, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			calls := filepath.Join(dir, "calls")
			text := "#!/bin/sh\nread n 2>/dev/null <" + calls + "\nn=$((n+1))\necho $n >" + calls + "\ncase $n in\n" + test.answers + "\nesac\n"
			if err := os.WriteFile(filepath.Join(dir, "squeue"), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			Options{Getenv: func(string) string { return "" }}.awaitParent(t.Context(), "12")
			if got, err := os.ReadFile(calls); err != nil || strings.TrimSpace(string(got)) != test.want {
				t.Errorf("squeue was called %q times, %v; want %s", got, err, test.want)
			}
		})
	}
}
