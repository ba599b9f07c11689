package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOwnExitCode: what a task ended with is said beside what the whole ended with.
func TestOwnExitCode(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"self":  `until [ "$1" = -- ]; do shift; done; shift; exec "$@"`,
		"berth": `cat >/dev/null; printf '%s\n' '` + taskMark + `' no '` + endedMark + `3' '` + taskMark + `' yes '` + endedMark + `0'; exit 1`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &berth{place: Place{Self: filepath.Join(dir, "self"), Berth: filepath.Join(dir, "berth"), Timeout: time.Minute}}
	results := b.RunTogether(t.Context(), []Task{{Args: []string{"no"}}, {Args: []string{"yes"}}})
	if err := results[0].Err; err == nil || !strings.HasPrefix(err.Error(), "exit code 3: no") || !strings.Contains(err.Error(), "; the whole: exit status 1") {
		t.Errorf("got %v", err)
	}
	if r := results[1]; r.Err != nil || r.Output.Stdout != "yes\n" {
		t.Errorf("the other: %+v", r)
	}
}
