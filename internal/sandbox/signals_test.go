package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRolesStartWithBlockedSignals(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	pid, err := forkCommand(&Command{Name: "role", Path: "/bin/grep", Args: []string{"SigBlk", "/proc/self/status"}, Log: log}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	// Bits 0, 1, 2, 9, 11, 13 and 14: HUP, INT, QUIT, USR1, USR2, ALRM, TERM.
	if want := "0000000000006a07"; strings.TrimSpace(strings.TrimPrefix(string(said), "SigBlk:")) != want {
		t.Errorf("blocked signals are %s, want %s", said, want)
	}
}
