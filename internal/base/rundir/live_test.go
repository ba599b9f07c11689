package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestDirectoryIsListedWhileLocked(t *testing.T) {
	base := t.TempDir()
	dir, err := Create(base, "job-1")
	if err != nil {
		t.Fatal(err)
	}
	if live := Live(base); !slices.Equal(live, []string{dir.Path}) {
		t.Errorf("live %v, want %s", live, dir.Path)
	}
	ended := make(chan error, 1)
	go func() { ended <- Await(dir.Path) }()
	if err := dir.Lock.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("its end is not noticed")
	}
	if live := Live(base); len(live) != 0 {
		t.Errorf("live %v after the end", live)
	}
}

func TestOneOfSeveralClaimsName(t *testing.T) {
	base := t.TempDir()
	dead, err := Create(base, "tunnel")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead.Path, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dead.Lock.Close(); err != nil {
		t.Fatal(err)
	}
	type claim struct {
		dir *Dir
		err error
	}
	claims := make(chan claim)
	for range 8 {
		go func() {
			dir, err := Claim(base, "tunnel")
			claims <- claim{dir, err}
		}()
	}
	var winner *Dir
	for range 8 {
		c := <-claims
		switch {
		case c.err == nil && winner == nil:
			winner = c.dir
		case c.err == nil:
			t.Error("two have it")
		case !errors.Is(c.err, fs.ErrExist):
			t.Error(c.err)
		}
	}
	if winner == nil {
		t.Fatal("nobody has it")
	}
	if _, err := os.Stat(filepath.Join(winner.Path, "left")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the dead one left is still there: %v", err)
	}
	if err := winner.Remove(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(base); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
