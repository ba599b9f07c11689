package berthd

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFailedSessionHoldsNothing(t *testing.T) {
	s := &sessions{dir: t.TempDir()}
	if err := os.Symlink("/dev/full", s.file("1001")); err != nil {
		t.Fatal(err)
	}
	if session, err := s.begin("1001", "lab"); session != nil || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("on a full disk: %v, %v", session, err)
	}
	last, err := s.lock("1001", unix.LOCK_EX)
	if err != nil {
		t.Fatalf("the end of the sessions: %v", err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}

// The lock belongs to the file, so it must be the same file for any group.
func TestSessionsKeepTheirGroup(t *testing.T) {
	s := &sessions{dir: t.TempDir()}
	for _, group := range []string{"", "laboratory", "laboratory", "lab", ""} {
		session, err := s.begin("1001", group)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		if there, err := os.ReadFile(s.file("1001")); err != nil || string(there) != group {
			t.Errorf("group %q: %q, %v", group, there, err)
		}
	}
	if _, err := s.lock("1001", unix.LOCK_EX); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while there are sessions: %v", err)
	}
}

// Sessions of one user start while the end of another's waits for etcd.
func TestUsersDoNotWaitForOthersSessions(t *testing.T) {
	s := &sessions{dir: t.TempDir()}
	defer s.hold("1001")()
	session, err := s.begin("1002", "")
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
}
