package main

import (
	"slices"
	"strings"
	"testing"
)

func TestRules(t *testing.T) {
	for text, want := range map[string]bool{
		"team is what a run on several nodes has":         true,
		"answer tells whether the caller still waited":    true,
		"Nobody is told of it":                            true,
		"for which there is none":                         true,
		"IPv4 addresses alone":                            true,
		"Leave alone what others made":                    false,
		"a directory of its own":                          true,
		"holds the pods that are scheduled":               false,
		"begins anew":                                     true,
		"was omitted, because the disk is not its own":    false,
		"`--quiet` leaves it away":                        true,
		"returns the total duration, not counting naps":   false,
		"They stand alone, and let alone they are what??": true,
	} {
		marked := false
		for _, r := range rules {
			marked = marked || r.marks(text)
		}
		if marked != want {
			t.Errorf("%q: marked %v, want %v", text, marked, want)
		}
	}
}

func TestProse(t *testing.T) {
	for _, test := range []struct {
		name, text, want string
		prose            bool
	}{
		{"a.go", "\t// holds the pods", "holds the pods", true},
		{"a.go", "x := 1 // bytes", "bytes", true},
		{"a.go", `u := "http://host"`, "", false},
		{"a.go", "x := 1", "", false},
		{"a.c", " * of a block", "of a block", true},
		{"run", "# starts it", "starts it", true},
		{"a.md", "plain words", "plain words", true},
		{"a.md", "    code", "    code", false},
	} {
		got, ok := prose(test.name, test.text)
		if ok != test.prose || ok && got != test.want {
			t.Errorf("prose(%q, %q) = %q, %v", test.name, test.text, got, ok)
		}
	}
}

// TestLiterals: help texts and messages are read, and other string literals are not.
func TestLiterals(t *testing.T) {
	source := "package a\n\nconst help = `Prints the pods\n\n  berth ls\nof a job now`\n\n" +
		"var err = errors.New(\"say which \\\"node\\\" it is\") // why\nvar name = \"two words\"\nvar broken = \"\n"
	want := []line{
		{"a.go", 3, "Prints the pods"}, {"a.go", 6, "of a job now"}, {"a.go", 8, `say which "node" it is`},
	}
	if got := literals("a.go", []byte(source)); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"a_test.go", "a.sh"} {
		if got := literals(name, []byte(source)); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTooLong(t *testing.T) {
	words := strings.Repeat("words ", 18)
	for text, want := range map[string]bool{
		words[:100]:                  false,
		words:                        true,
		"| " + words + " |":          false,
		"### " + words:               false,
		"[1.0](x \"" + words + "\")": false,
		strings.Repeat("word", 30):   false,
	} {
		if got := (line{"docs/x.md", 1, text}).tooLong(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if (line{"x.go", 1, words}).tooLong() {
		t.Error("a line of Go")
	}
}
