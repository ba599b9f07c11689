package launch

import (
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
)

func TestKSIPort(t *testing.T) {
	for value, want := range map[string]uint16{"": 0, "30000": 30000, "32767": 32767} {
		if got, err := ksiPort(func(string) string { return value }); err != nil || got != want {
			t.Errorf("%q: got %d, %v", value, got, err)
		}
	}
	for _, value := range []string{"80", "29999", "32768", "-1", "30000x", " "} {
		if got, err := ksiPort(func(string) string { return value }); exitcode.Of(err) != exitcode.Usage {
			t.Errorf("%q: got %d, %v", value, got, err)
		}
	}
}

func TestKSIFolder(t *testing.T) {
	shared := t.TempDir()
	for range 2 { // the second time the folder exists
		if got, err := ksiFolder(cluster.KSI{Shared: shared}); err != nil || got != filepath.Join(shared, "app") {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	t.Chdir(shared)
	here, err := os.Getwd()
	if got, problem := ksiFolder(cluster.KSI{}); err != nil || problem != nil || got != here {
		t.Errorf("got %q, %v", got, problem)
	}
	file := filepath.Join(shared, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{file, filepath.Join(shared, "missing")} {
		if got, err := ksiFolder(cluster.KSI{Shared: wrong}); exitcode.Of(err) != exitcode.NoInput {
			t.Errorf("%s: got %q, %v", wrong, got, err)
		}
	}
}
