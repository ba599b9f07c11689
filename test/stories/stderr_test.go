package stories

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// storyT fails a story with the step only-berth for each line on standard error without
// the prefix "berth: ". The exec of testscript cannot be replaced, so storyT reads the log.
type storyT struct {
	*testing.T
	script []string // lines of the story
}

// Verbose keeps the output of steps that passed in the log.
func (t storyT) Verbose() bool { return true }

func (t storyT) Run(name string, f func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		f(storyT{t, strings.Split(string(text), "\n")})
	})
}

// Log gets the whole log of a story, at its end.
func (t storyT) Log(args ...any) {
	t.Helper()
	t.T.Log(args...)
	if !slices.Contains(t.script, "only-berth") {
		return
	}
	for _, line := range strayLines(fmt.Sprint(args...), t.script) {
		t.Errorf("on standard error, and not of berth: %q", line)
	}
}

// onlyBerth is a command of stories: only-berth fails the story if any of its programs
// writes a line to standard error that is not berth's.
func onlyBerth(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 0 {
		ts.Fatalf("usage: only-berth")
	}
}

var (
	// phaseTime is the time that testscript adds to a comment.
	phaseTime = regexp.MustCompile(` \([0-9.]+s\)$`)
	// programEnd is the line after the output of a program that failed.
	programEnd = regexp.MustCompile(`^\[(exit status [0-9]+|signal: .*)\]$`)
)

// strayLines returns the lines on standard error in the log of a story that are not
// berth's. An empty line is no line: testscript adds some.
func strayLines(log string, script []string) (stray []string) {
	inStderr := false
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		step, isStep := strings.CutPrefix(line, "> ")
		switch {
		case strings.HasSuffix(line, "[stderr]"): // output may lack its last line end
			inStderr = true
		case isStep && slices.Contains(script, step),
			strings.HasPrefix(line, "#") && slices.Contains(script, phaseTime.ReplaceAllString(line, "")),
			line == "[stdout]", strings.HasPrefix(line, "[background] "), strings.HasPrefix(line, "FAIL: "),
			line == "PASS", programEnd.MatchString(line):
			inStderr = false
		case inStderr && line != "" && !strings.HasPrefix(line, "berth: "):
			stray = append(stray, line)
		}
	}
	return stray
}

func TestStrayLines(t *testing.T) {
	script := []string{"# a phase", "exec berth run", "! exec berth ls"}
	for _, test := range []struct {
		name, log string
		want      []string
	}{
		{"of berth", "# a phase (0.123s)\n> exec berth run\n[stderr]\nberth: one\nberth: two\n[exit status 3]\nPASS\n", nil},
		{"of something else", "> exec berth run\n[stdout]\nworks[stderr]\nberth: one\nE1127 refused\n\n> ! exec berth ls\nPASS\n", []string{"E1127 refused"}},
		{"that looks like a step", "> exec berth run\n[stderr]\n> indented\nPASS\n", []string{"> indented"}},
		{"in the background", "> exec berth run\n[background] berth run: exit status 1\n[stderr]\nusage\n", []string{"usage"}},
	} {
		if got := strayLines(test.log, script); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
