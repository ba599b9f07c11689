package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth.dev/berth/internal/testutil"
)

func TestRunningRunIsNotStale(t *testing.T) {
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

func TestHomeIsClosedToOthers(t *testing.T) {
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

// A user who first makes what would be this user's directory gains nothing, and
// keeps nobody from working, whatever names are taken.
func TestForeignHomeIsSkipped(t *testing.T) {
	base := t.TempDir()
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, Home(base)); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := os.WriteFile(fmt.Sprint(Home(base), ".", i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var homes []string
	for _, run := range []string{"job-1", "job-2"} {
		dir, err := Create(base, run)
		if err != nil {
			t.Fatal(err)
		}
		homes = append(homes, filepath.Dir(dir.Path))
		if live := Live(base); !slices.Equal(live, []string{dir.Path}) {
			t.Errorf("live %v, want %s", live, dir.Path)
		}
		if err := dir.Lock.Close(); err != nil {
			t.Fatal(err)
		}
		if stale, err := Stale(base); err != nil || !slices.Contains(stale, dir.Path) {
			t.Errorf("stale %v, %v", stale, err)
		}
	}
	if homes[0] != homes[1] || !slices.Equal(Owned(base), homes[:1]) {
		t.Errorf("homes %v, owned %v", homes, Owned(base))
	}
	if info, err := os.Stat(homes[0]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) != 0 {
		t.Errorf("the link was followed: %v, %v", entries, err)
	}
}

// A name that another user owns is not a directory of this user's.
func TestOtherUsersHomeIsSkipped(t *testing.T) {
	testutil.Require(t, testutil.Root)
	base := t.TempDir()
	for _, name := range []string{"", ".1", ".x"} {
		if err := os.Mkdir(Home(base)+name, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(Home(base)+name, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := Create(base, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Lock.Close()
	if owned := Owned(base); !slices.Equal(owned, []string{filepath.Dir(dir.Path)}) {
		t.Errorf("owned %v, the directory is %s", owned, dir.Path)
	}
}
