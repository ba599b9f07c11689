package cli

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth.dev/berth/internal/testutil"
)

// TestManual keeps the pages in packaging/man the same as the command line.
func TestManual(t *testing.T) {
	const folder = "../../packaging/man"
	pages := manPages(newRoot())
	if testutil.Updating() {
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, page := range pages {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	there, err := filepath.Glob(folder + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range there {
		there[i] = filepath.Base(path)
	}
	if want := slices.Sorted(maps.Keys(pages)); !slices.Equal(there, want) {
		t.Fatalf("the pages are %q, not %q; -update writes them", there, want)
	}
	for name, page := range pages {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(content) != page {
			t.Errorf("%s is not what the command line says; -update writes it", name)
		}
	}
}

// TestManualIsRoff: a formatter has nothing to say about the pages.
func TestManualIsRoff(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("no groff here")
	}
	for name, page := range manPages(newRoot()) {
		command := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
		command.Stdin = strings.NewReader(page)
		if said, err := command.CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("%s: %v\n%s", name, err, said)
		}
	}
}

// TestHelp: every command has a group, and its help fits a terminal.
func TestHelp(t *testing.T) {
	root := newRoot()
	for _, command := range root.Commands() {
		if command.GroupID == "" && command.IsAvailableCommand() {
			t.Errorf("%s is in no group", command.Name())
		}
		for _, line := range strings.Split(helpText(command, helpWidth), "\n") {
			if len(line) > helpWidth+20 { // usage lines are as long as they are
				t.Errorf("%s: a line of %d columns: %s", command.Name(), len(line), line)
			}
		}
	}
	if text := helpText(root, helpWidth); !strings.Contains(text, "\nRun workloads:\n  run ") {
		t.Errorf("help of berth:\n%s", text)
	}
}

// TestShortHelp checks that help fits two screens, and that --help-all has every option.
func TestShortHelp(t *testing.T) {
	root := newRoot()
	for _, command := range append(slices.Concat(root.Commands(), imageCommands(root)), root) {
		if lines := strings.Count(briefHelp(command, helpWidth), "\n"); lines > shortHelpLines {
			t.Errorf("help of %s has %d lines", command.Name(), lines)
		}
	}
	run, _, err := root.Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	brief, full := briefHelp(run, helpWidth), helpText(run, helpWidth)
	if strings.Contains(brief, "--carrier") || !strings.Contains(brief, "--image=") || !strings.Contains(full, "--carrier") {
		t.Errorf("short help:\n%s\nfull help:\n%s", brief, full)
	}
	for name, c := range map[string]struct {
		args []string
		all  bool
	}{"own": {[]string{"run", "--help-all"}, true}, "another program's": {[]string{"run", "--", "x", "--help-all"}, false}} {
		if args, all := cutHelpAll(c.args); all != c.all || slices.Contains(args, "--help-all") == c.all {
			t.Errorf("%s: %q, %v", name, args, all)
		}
	}
}

// output runs the command line and returns its standard output.
func output(t *testing.T, args ...string) string {
	t.Helper()
	root := newCommandLine(args)
	var text strings.Builder
	root.SetOut(&text)
	root.SetErr(io.Discard)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("berth %s: %v", strings.Join(args, " "), err)
	}
	return text.String()
}

// TestCommandLineHelp checks which help an option asks for.
func TestCommandLineHelp(t *testing.T) {
	for option, all := range map[string]bool{"--help": false, "--help-all": true} {
		if text := output(t, "run", option); strings.Contains(text, "--carrier") != all || !strings.Contains(text, "--image=") {
			t.Errorf("berth run %s:\n%s", option, text)
		}
	}
}

// TestCompletions asks as the scripts of the shells do.
func TestCompletions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"run --carrier ", "udp\ntcp\n:4\n"},
		{"run --snapshotter=", "auto\noverlayfs\nerofs\n:4\n"},
		{"run --state-dir ", ":16\n"},
		{"completion ", "bash\tPrint the script for bash\nzsh\tPrint the script for zsh\nfish\tPrint the script for fish\n:4\n"},
	} {
		if got := output(t, append([]string{"__complete"}, strings.Split(c.args, " ")...)...); got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}

// TestBashCompletion completes commands in a bash without the package bash-completion.
func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	root := newRoot()
	var script strings.Builder
	root.SetOut(&script)
	root.SetArgs([]string{"completion", "bash"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"berth doc":               "berth doc",
		"berth run --carrier =tc": "berth run --carrier=tc",
		"berth run --image a : 1": "berth run --image a:1",
	} {
		words := strings.Fields(line)
		for i, word := range words { // as readline passes them to a function
			words[i] = "'" + word + "'"
		}
		command := exec.Command(bash, "--norc", "-c", script.String()+"\nCOMP_WORDS=("+strings.Join(words, " ")+
			") COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n__berth_init_completion -n =:\necho \"${words[*]}|$cur|$prev|$cword\"")
		out, err := command.CombinedOutput()
		got := strings.Fields(want)
		last := len(got) - 1
		if expected := want + "|" + got[last] + "|" + got[last-1] + "|" + string(rune('0'+last)) + "\n"; err != nil || string(out) != expected {
			t.Errorf("%s: %v, %q, want %q", line, err, out, expected)
		}
	}
}

// TestOptionSections: no heading names an option that is not there.
func TestOptionSections(t *testing.T) {
	known := map[string]bool{"help": true, "version": true}
	root := newRoot()
	for _, command := range slices.Concat(root.Commands(), imageCommands(root)) {
		command.Flags().VisitAll(func(flag *pflag.Flag) { known[flag.Name] = true })
	}
	for _, section := range optionSections() {
		for _, name := range section.names {
			if !known[name] {
				t.Errorf("%s is not an option", name)
			}
		}
	}
}
