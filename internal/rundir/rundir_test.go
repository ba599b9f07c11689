package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestARunningRunIsNotStale(t *testing.T) {
	base := t.TempDir()
	dir, err := Create(base, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	if stale, err := Stale(base); err != nil || len(stale) != 0 {
		t.Errorf("stale while running: %v, %v", stale, err)
	}
	if _, err := Create(base, "job-1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second directory of the same run: %v", err)
	}
	if err := dir.Lock.Close(); err != nil {
		t.Fatal(err)
	}
	stale, err := Stale(base)
	if err != nil || !slices.Equal(stale, []string{dir.Path}) {
		t.Errorf("stale after the end: %v, %v", stale, err)
	}
	entries, err := os.ReadDir(Home(base))
	if err != nil || len(entries) != 1 {
		t.Errorf("the refused directory was left: %v, %v", entries, err)
	}
}

func TestTheHomeIsClosedToOthers(t *testing.T) {
	base := t.TempDir()
	if err := os.Mkdir(Home(base), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := Create(base, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Lock.Close()
	info, err := os.Stat(Home(base))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestAHomeThatIsALinkIsRefused(t *testing.T) {
	base := t.TempDir()
	if err := os.Symlink(filepath.Join(base, "elsewhere"), Home(base)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(base, "job-1"); err == nil {
		t.Error("a link set by somebody else is followed")
	}
}
