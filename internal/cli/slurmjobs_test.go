package cli

import (
	"slices"
	"strings"
	"testing"
)

// TestAllowedUsers: spaces around names are no part of them.
func TestAllowedUsers(t *testing.T) {
	f := slurmJobsFlags{namespace: "lab", users: []string{"alice", " bob "}}
	if err := f.check(); err != nil || !slices.Equal(f.users, []string{"alice", "bob"}) {
		t.Errorf("got %q, %v", f.users, err)
	}
	f.users = []string{"alice", " "}
	if err := f.check(); err == nil || !strings.Contains(err.Error(), "empty user") {
		t.Error(err)
	}
}
