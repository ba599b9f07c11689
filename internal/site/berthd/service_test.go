package berthd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadNode(t *testing.T) {
	for text, want := range map[string]slurmNode{
		"NodeName=n1 Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n":                                                  {},
		"   State=IDLE+DRAIN ThreadsPerCore=1\n   Reason=berth: berthd does not answer [root@2026-11-29T05:00:00]\n": {drained: true, ours: true},
		"   State=MIXED+DRAIN ThreadsPerCore=1\n   Reason=memory [alice@2026-11-29T05:00:00]\n":                      {drained: true},
		// What is left of an earlier reason.
		"   State=DOWN* ThreadsPerCore=1\n   Reason=berth: berthd does not answer [root@2026-11-29T05:00:00]\n": {},
	} {
		if got := parseNode(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// A node is ill while its directory takes no file. The probe leaves none.
func TestProbeNeedsDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := (&service{run: filepath.Join(dir, "none")}).probe(); err == nil || !strings.Contains(err.Error(), "make room there") {
		t.Errorf("without the directory: %v", err)
	}
	if err := (&service{run: dir}).probe(); err != nil {
		t.Errorf("with room: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
