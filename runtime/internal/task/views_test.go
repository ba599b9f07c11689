package task

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/bundle"
)

func TestViewsAreRemoved(t *testing.T) {
	var logged bytes.Buffer
	v := views{t.TempDir(), slog.New(slog.NewTextHandler(&logged, nil))}
	file := filepath.Join(v.of("a"), "proc", "meminfo")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	v.unmount("a") // nothing is mounted
	v.remove("a")
	v.remove("b")
	if left, err := filepath.Glob(filepath.Join(v.dir, "*")); err != nil || len(left) > 0 || logged.Len() > 0 {
		t.Errorf("left are %v, logged is %q", left, &logged)
	}
}

func TestMachineMemory(t *testing.T) {
	m := Machine{Memory: 1000}
	for limit, want := range map[int64]uint64{0: 1000, 300: 300, 5000: 1000} {
		if got := m.memoryOf(limit); got != want {
			t.Errorf("a container with limit %d sees %d, want %d", limit, got, want)
		}
	}
}

func TestNothingIsBoundWithoutKnownCPUs(t *testing.T) {
	var logged bytes.Buffer
	b := binder{CPUs{}, slog.New(slog.NewTextHandler(&logged, nil))}
	if got := b.choose("a", bundle.Container{SeesLimits: true}); got.Size() != 0 {
		t.Errorf("bound to %s", got)
	}
	b.bind("a", os.Getpid(), cpuset.New())
	b.release("a")
	if logged.Len() > 0 {
		t.Errorf("logged: %s", &logged)
	}
}
