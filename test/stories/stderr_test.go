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

// storyT fails a story for each line on standard error without the prefix "berth: ",
// after a step that runs nothing but berth. A line may be Slurm's, or a container's that
// the story names, such as stderr '^to stderr$'. In a story with the step only-berth,
// each line after each step must be berth's. The exec of testscript cannot be replaced,
// so storyT reads the log.
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
	for _, line := range strayLines(fmt.Sprint(args...), t.script) {
		t.Errorf("on standard error, and not of berth: %q", line)
	}
}

// onlyBerth runs the step only-berth of a story, which only checks its arguments. Its
// presence makes strayLines look at all programs of the story, not only at berth.
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
	ofSlurm    = regexp.MustCompile(`^(\S*/)?(sbatch|srun): |^Try "sbatch --help"`)
)

// strayLines returns the lines on standard error in the log of a story that are not
// berth's. An empty line is no line: testscript adds some.
func strayLines(log string, script []string) (stray []string) {
	all := slices.Contains(script, "only-berth")
	inStderr, own := false, false
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		step, isStep := strings.CutPrefix(line, "> ")
		switch {
		case strings.HasSuffix(line, "[stderr]"): // output may lack its last line end
			inStderr = own || all
		case isStep && slices.Contains(script, step):
			inStderr, own = false, isOwn(step)
		case strings.HasPrefix(line, "[background] "):
			inStderr, own = false, isOwn("exec "+strings.TrimPrefix(line, "[background] "))
		case strings.HasPrefix(line, "#") && slices.Contains(script, phaseTime.ReplaceAllString(line, "")),
			line == "[stdout]", strings.HasPrefix(line, "FAIL: "),
			line == "PASS", programEnd.MatchString(line):
			inStderr = false
		case !all && (ofSlurm.MatchString(line) || named(script, line)):
		case inStderr && line != "" && !strings.HasPrefix(line, "berth: "):
			stray = append(stray, line)
		}
	}
	return stray
}

// named reports whether a step of a story expects exactly this line.
func named(script []string, line string) bool {
	return slices.ContainsFunc(script, func(step string) bool { return strings.HasSuffix(step, " '^"+line+"$'") })
}

// isOwn reports whether a step runs berth, without a command of the user.
func isOwn(step string) bool {
	words := strings.Fields(strings.TrimPrefix(step, "! "))
	if len(words) > 0 && words[0] == "exits" {
		words = words[1:]
	}
	return len(words) > 1 && words[1] == "berth" && !slices.Contains(words, "--")
}

func TestStrayLines(t *testing.T) {
	script := []string{"# a phase", "exec berth run", "! exec berth ls", "exits 3 berth run -f x", "exec berth run -- sh x", "exec sh x", "wait", "stderr '^to stderr$'"}
	for _, test := range []struct {
		name, log string
		strict    bool
		want      []string
	}{
		{"of berth", "# a phase (0.123s)\n> exec berth run\n[stderr]\nberth: one\nberth: two\n[exit status 3]\nPASS\n", false, nil},
		{"of something else", "> exec berth run\n[stdout]\nworks[stderr]\nberth: one\nE1127 refused\n\n> ! exec berth ls\nPASS\n", false, []string{"E1127 refused"}},
		{"after a failure", "> exits 3 berth run -f x\n[stderr]\nberth: one\nusage\n", false, []string{"usage"}},
		{"that looks like a step", "> exec berth run\n[stderr]\n> indented\nPASS\n", false, []string{"> indented"}},
		{"in the background", "> wait\n[background] berth run: exit status 1\n[stderr]\nusage\n", false, []string{"usage"}},
		{"of a program in the background", "> wait\n[background] sh x: exit status 1\n[stderr]\nusage\n", false, nil},
		{"of a container", "> exec berth run\n[stderr]\nto stderr\nberth: one\nto stderr too\n", false, []string{"to stderr too"}},
		{"of Slurm", "> exec berth run\n[stderr]\nsbatch: error: no\n/usr/bin/sbatch: no\nbatch: no\n", false, []string{"batch: no"}},
		{"of a container, in a story with only berth", "> exec berth run\n[stderr]\nto stderr\n", true, []string{"to stderr"}},
		{"of the user's command", "> exec berth run\n> exec berth run -- sh x\n[stderr]\nx is done\n> exec sh x\n[stderr]\nx is done\n", false, nil},
		{"of a story with only berth", "> only-berth\n> exec sh x\n[stderr]\nx is done\n", true, []string{"x is done"}},
	} {
		script := script
		if test.strict {
			script = append([]string{"only-berth"}, script...)
		}
		if got := strayLines(test.log, script); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
