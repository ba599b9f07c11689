package berthd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
)

func sessionsOf(t *testing.T) *Daemon {
	d := &Daemon{config: siteconf.Config{Run: t.TempDir()}}
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

// The lock belongs to the file, so it must be the same file for any group.
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

// Sessions of one user start while the end of another's waits for etcd.
func TestUsersDoNotWaitForTheEndOfOthersSessions(t *testing.T) {
	d := sessionsOf(t)
	defer d.holdSessions("1001")()
	session, err := d.beginSession("1002", "")
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
}

func TestSessionsAreInTheJobThatHasAdoptedThem(t *testing.T) {
	d := &Daemon{local: map[string]*localPod{}}
	for _, a := range []siteconf.Allocation{{Job: 7, UID: 1001, After: 7}, {Job: 8, UID: 1001, After: 8}, {Job: 9, UID: 1002, After: 9}, {Login: "n1", UID: 1001, After: 10}} {
		d.local[a.ID()] = &localPod{Allocation: a, ready: true}
	}
	d.local["10"] = &localPod{Allocation: siteconf.Allocation{Job: 10, UID: 1001, After: 11}}
	for adopter, want := range map[uint32]string{0: "8", 7: "7", 8: "8", 9: "", 10: "", 11: ""} {
		if id, err := d.choose(1001, adopter); id != want || (err == nil) != (want != "") {
			t.Errorf("adopted by job %d: %q, %v, want %q", adopter, id, err, want)
		}
	}
	if id, err := d.choose(1003, 0); err == nil {
		t.Errorf("without a job: %s", id)
	}
}
