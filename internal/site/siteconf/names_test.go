package siteconf

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
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

// In the DNS a job must not take the place of the asker or of a host.
func TestReservedNames(t *testing.T) {
	for _, a := range []Allocation{{Job: 42, Name: "localhost"}, {Job: 42, Name: "LocalHost"}, {Job: 42, Name: "ctl", Reserved: true}} {
		if got := a.JobLabel(); got != "42" {
			t.Errorf("%+v: label %q, want 42", a, got)
		}
	}
	for _, test := range []struct {
		job, host string
		want      bool
	}{
		{"ctl", "ctl", true}, {"CTL", "ctl.example.org", true}, {"n1", "n10", false}, {"", "ctl", false}, {"ctl.example.org", "ctl.example.org", false}, {"..", "-", false},
	} {
		if got := SameLabel(test.job, test.host); got != test.want {
			t.Errorf("job %q and host %q: %t, want %t", test.job, test.host, got, test.want)
		}
	}
}

func TestJobIsSearchedFirst(t *testing.T) {
	a := Allocation{Job: 42, UID: 1001, User: "alice", Name: "db"}
	want := []string{"db.alice.alps", "alice.alps", "example.org"}
	if got := a.Domains("alps", []string{"example.org"}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestUserChosenNames(t *testing.T) {
	long := strings.Repeat("a", maxLabel)
	many := make([]string, MaxNames+1)
	for i := range many {
		many[i] = fmt.Sprintf("n%d", i)
	}
	wide := make([]string, 16)
	for i := range wide {
		wide[i] = fmt.Sprintf("%02d%s", i, strings.Repeat("a", maxLabel-2))
	}
	full := strings.Join(wide, ",")
	for text, want := range map[string]string{
		// Texts of 1023 bytes and of 1025.
		full: strings.Join(wide, "+"), full + ",a": "error",
		"": "", "web": "web", "web.default,api,web": "api+web+web.default", "pod": "pod", "podium": "podium", "pod0.default": "pod0.default",
		long: long, strings.Join(many[1:], ","): "64 of them",
		"Web": "error", "-web": "error", "web-": "error", "w_b": "error", "a.b.c": "error", "web.": "error", ".web": "error", "*": "error", "ä": "error",
		"localhost": "error", "pod0": "error", "pod12": "error", long + "a": "error", strings.Join(many, ","): "error", "a b": "error", "a\nb": "error",
	} {
		names, err := ParseNames(text)
		got := strings.Join(names, "+")
		switch {
		case err != nil:
			got = "error"
		case len(names) == MaxNames:
			got = "64 of them"
		}
		if got != want {
			t.Errorf("%.20q: %s (%v), want %s", text, got, err, want)
		}
	}
}

func FuzzParseNames(f *testing.F) {
	f.Add("web.default,api")
	f.Fuzz(func(t *testing.T, text string) {
		fuzzbound.Watch(t)
		names, err := ParseNames(text)
		if err != nil {
			return
		}
		// Accepted names parse to the same names again.
		again, err := ParseNames(strings.Join(names, ","))
		if err != nil || !slices.Equal(names, again) {
			t.Errorf("%q: %v, then %v, %v", text, names, again, err)
		}
	})
}
