package command

import (
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

// TestSameBefore: trials with and without page caches are not mixed.
func TestSameBefore(t *testing.T) {
	recorded := []record.Line{{Session: &record.Session{Before: "drop caches"}}, {Trial: &record.Trial{}}}
	if err := sameBefore([]string{"drop", "caches"}, recorded, "f"); err != nil {
		t.Error(err)
	}
	for _, now := range [][]string{nil, {"drop"}} {
		if err := sameBefore(now, recorded, "f"); err == nil || !strings.Contains(err.Error(), "--out") {
			t.Errorf("%q: %v", now, err)
		}
	}
	if err := sameBefore(nil, nil, "f"); err != nil {
		t.Error(err)
	}
}

// TestCaseOfOtherPlans: an unknown case of a plan gives an error that lists the
// plans with that case.
func TestCaseOfOtherPlans(t *testing.T) {
	for name, want := range map[string]string{
		"patch-tuesday": "have it (--plan): images-bed, images",
		"no-such-case":  "no built-in plan has it",
	} {
		if _, err := readPlan("quick", []string{name}); err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), "the plan quick has no case") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readPlan("quick", []string{"startup"}); err != nil {
		t.Error(err)
	}
}

// TestHelp checks the format of help, which is that of the other commands of
// berth, and its width.
func TestHelp(t *testing.T) {
	root := newRoot()
	for _, command := range append(root.Commands(), root) {
		text := helpText(command)
		if !strings.HasPrefix(text, "Usage: berth bench ") || !strings.Contains(text, "\nOptions:\n") || strings.Contains(text, "[flags]") {
			t.Errorf("%s:\n%s", command.Name(), text)
		}
		for line := range strings.Lines(text) {
			if len(line) > helpWidth+20 { // usage lines and examples are as long as they are
				t.Errorf("%s: a line of %d columns: %s", command.Name(), len(line), line)
			}
		}
	}
	if text := helpText(root); !strings.Contains(text, "\nCommands:\n  compare       Compare two files of records\n") {
		t.Errorf("help of berth bench:\n%s", text)
	}
}

// TestExitCodes: a script can distinguish a command line that is wrong from a run that
// failed.
func TestExitCodes(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		want int
		args []string
	}{
		{0, []string{"list"}},
		{0, []string{"plan", "quick"}},
		{0, []string{"run", "--dry-run", "--plan", "ksi", "--out", none, "startup"}},
		{0, []string{"images", "--dry-run", "--out", none, "lazy"}},
		{exitUsage, []string{"nothing"}},
		{exitUsage, []string{"list", "--nothing"}},
		{exitUsage, []string{"plan"}},
		{exitUsage, []string{"compare", "one"}},
		{exitFailed, []string{"plan", none}},
		{exitFailed, []string{"report", none}},
		{exitFailed, []string{"run", "--local", "--out", none, "--image", none}},
		{exitFailed, []string{"run", "--dry-run", "--out", none, "no-such-case"}},
	} {
		if got := Main(c.args); got != c.want {
			t.Errorf("%q: exit code %d, want %d", c.args, got, c.want)
		}
	}
}
