package site

import (
	"slices"
	"strings"
	"testing"
)

func TestLabels(t *testing.T) {
	for _, test := range []struct{ user, job, wantUser, wantJob string }{
		{"alice", "db", "alice", "db"},
		{"alice", "My Job_2", "alice", "my-job-2"},
		{"alice", "", "alice", "42"},
		{"alice", "..--", "alice", "42"},
		{"alice", "pod0.db.bob", "alice", "pod0-db-bob"},
		{"alice", "größe", "alice", "gr--e"},
		{"John.Doe", "x", "john-doe-1001", "x"},
		{"Alice", "x", "alice-1001", "x"},
		{"", "x", "user-1001", "x"},
		{strings.Repeat("u", 80), strings.Repeat("j", 80), strings.Repeat("u", 58) + "-1001", strings.Repeat("j", 63)},
		{"alice", strings.Repeat("j", 62) + ".x", "alice", strings.Repeat("j", 62)},
	} {
		a := Allocation{Job: 42, UID: 1001, User: test.user, Name: test.job}
		if got := a.UserLabel(); got != test.wantUser {
			t.Errorf("user %q: %q, want %q", test.user, got, test.wantUser)
		}
		if got := a.JobLabel(); got != test.wantJob {
			t.Errorf("job %q: %q, want %q", test.job, got, test.wantJob)
		}
	}
}

func TestTheJobIsSearchedFirst(t *testing.T) {
	a := Allocation{Job: 42, UID: 1001, User: "alice", Name: "db"}
	want := []string{"db.alice.alps", "alice.alps", "example.org"}
	if got := a.Domains("alps", []string{"example.org"}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
