package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
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
	entries, err := os.ReadDir(Homes(base)[0])
	if err != nil || len(entries) != 1 {
		t.Errorf("the refused directory was left: %v, %v", entries, err)
	}
}

func TestTheHomeIsClosedToOthers(t *testing.T) {
	base := t.TempDir()
	if err := os.Mkdir(Homes(base)[0], 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := Create(base, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Lock.Close()
	info, err := os.Stat(Homes(base)[0])
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Who is first to make what would be this user's directory gains nothing, and
// keeps nobody from working.
func TestAnothersHomeIsPassedBy(t *testing.T) {
	base := t.TempDir()
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, Homes(base)[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Homes(base)[1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := Create(base, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(dir.Path) != Homes(base)[2] {
		t.Errorf("the directory is %s", dir.Path)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) != 0 {
		t.Errorf("the link was followed: %v, %v", entries, err)
	}
	if err := dir.Lock.Close(); err != nil {
		t.Fatal(err)
	}
	if stale, err := Stale(base); err != nil || !slices.Equal(stale, []string{dir.Path}) {
		t.Errorf("stale %v, %v", stale, err)
	}
	for _, home := range Homes(base) {
		if err := os.WriteFile(home, nil, 0o600); err != nil && !errors.Is(err, unix.EISDIR) {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(Homes(base)[2]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Homes(base)[2], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(base, "job-2"); err == nil {
		t.Error("a directory was made although all names are taken")
	}
}
