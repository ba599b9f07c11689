package siteconf

import (
	"maps"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestMessagesRoundTrip(t *testing.T) {
	want := Message{Verb: VerbAttach, Fields: map[string]string{"job": "42", "nodes": "n[1-3]", "name": ""}}
	got, err := decode(want.Encode())
	if err != nil || got.Verb != want.Verb || !maps.Equal(got.Fields, want.Fields) {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestValueCannotBecomeField(t *testing.T) {
	m := Message{Verb: VerbAttach, Fields: map[string]string{"name": "x\nuid 0\n\nberthd/1 release"}}
	got, err := decode(m.Encode())
	if err != nil || len(got.Fields) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestForeignMessagesAreRefused(t *testing.T) {
	for text, reason := range map[string]string{
		"":                                       "no end",
		"berthd/1 attach\n":                      "no end",
		"berthd/2 attach\n\n":                    "same version",
		"GET / HTTP/1.1\n\n":                     "same version",
		"berthd/1 \n\n":                          "verb",
		"berthd/1 attach\nJOB 1\n\n":             "field",
		"berthd/1 attach\njob 1\njob 2\n\n":      "twice",
		"berthd/1 attach\njob \x01\n\n":          "control",
		"berthd/1 attach\n\njob 1\n\n":           "field",
		strings.Repeat("x", maxMessage) + "\n\n": "longer",
	} {
		if _, err := decode([]byte(text)); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%.40q: %v, want %s", text, err, reason)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("berthd/1 attach\njob 42\nuid 1000\n\n"))
	f.Add([]byte("berthd/1 ok\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		m, err := decode(text)
		if err != nil {
			return
		}
		again, err := decode(m.Encode())
		if err != nil || again.Verb != m.Verb || !maps.Equal(again.Fields, m.Fields) {
			t.Fatalf("%q became %v, then %v: %v", text, m, again, err)
		}
	})
}
