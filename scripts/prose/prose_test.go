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
			marked = marked || r.marks(line{text: text})
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

// TestFunctions: only the first line of a comment directly above the named function is
// read as a comment on a function.
func TestFunctions(t *testing.T) {
	for source, want := range map[string]bool{
		"// port is the port.\nfunc port() int {\n":                        true,
		"// Names are the names,\n// sorted.\nfunc (p *Plan) Names() {}\n": true,
		"// Close is not a promise.\nfunc Close() {}\n":                    true,
		"// port returns the port.\nfunc port() int {\n":                   false,
		"// Get returns a port,\n// Get is fast.\nfunc Get() int {\n":      false,
		"// wake is called with mu held.\nfunc (q *queue) wake() {\n":      false,
		"// ReadAll is like Read, for files.\nfunc ReadAll() {}\n":         false,
		"// Zones is not implemented.\nfunc (c cloud) Zones() bool {\n":    false,
		"// This is the rest.\nfunc rest() {}\n":                           false,
		"// port is the port.\n\nfunc port() int {\n":                      false,
		"// port is the port.\nvar port int\n\nfunc f() {}\n":              false,
		"x() // port is open\n\n// port opens it.\nfunc port() {}\n":       false,
		"// port returns it.\nfunc port() {}\n\n// get is.\nfunc get() {}": false,
	} {
		marked := false
		for _, l := range comments("a.go", source) {
			for _, r := range rules {
				marked = marked || r.marks(l)
			}
		}
		if marked != want {
			t.Errorf("%q: marked %v, want %v", source, marked, want)
		}
	}
}

// TestLiterals: help texts and messages are read, and other string literals are not.
func TestLiterals(t *testing.T) {
	source := "package a\n\nconst help = `Prints the pods\n\n  berth ls\nof a job now`\n\n" +
		"var err = errors.New(\"say which \\\"node\\\" it is\") // why\nvar name = \"two words\"\nvar broken = \"\n"
	want := []line{
		{path: "a.go", number: 3, text: "Prints the pods"},
		{path: "a.go", number: 6, text: "of a job now"},
		{path: "a.go", number: 8, text: `say which "node" it is`},
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
		if got := (line{path: "docs/x.md", number: 1, text: text}).tooLong(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if (line{path: "x.go", number: 1, text: words}).tooLong() {
		t.Error("a line of Go")
	}
}
