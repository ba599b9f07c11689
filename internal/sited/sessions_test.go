package sited

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site"
)

func sessionsOf(t *testing.T) *Daemon {
	d := &Daemon{config: site.Config{Run: t.TempDir()}}
	if err := os.Mkdir(filepath.Join(d.config.Run, "sessions"), 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestASessionThatCannotBeginHoldsNothing(t *testing.T) {
	d := sessionsOf(t)
	if err := os.Symlink("/dev/full", d.sessionFile("1001")); err != nil {
		t.Fatal(err)
	}
	if session, err := d.beginSession("1001", "lab"); session != nil || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("on a full disk: %v, %v", session, err)
	}
	last, err := d.lockSession("1001", unix.LOCK_EX)
	if err != nil {
		t.Fatalf("the end of the sessions: %v", err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}

// The lock is the file's, so it is the same file whatever the group.
func TestSessionsKeepTheirGroup(t *testing.T) {
	d := sessionsOf(t)
	for _, group := range []string{"", "laboratory", "laboratory", "lab", ""} {
		session, err := d.beginSession("1001", group)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		if there, err := os.ReadFile(d.sessionFile("1001")); err != nil || string(there) != group {
			t.Errorf("group %q: %q, %v", group, there, err)
		}
	}
	if _, err := d.lockSession("1001", unix.LOCK_EX); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while there are sessions: %v", err)
	}
}

// While the end of one user's sessions waits for etcd, another's begin.
func TestUsersDoNotWaitForTheEndOfOthersSessions(t *testing.T) {
	d := sessionsOf(t)
	defer d.holdSessions("1001")()
	session, err := d.beginSession("1002", "")
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
}
