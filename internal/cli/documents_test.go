package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// code matches text in backticks, and lines that a shell would run.
var code = regexp.MustCompile("`([^`\n]+)`|(?m)^(?:    |\\S*\\$ )(.+)$") //nolint:gochecknoglobals // a constant

// call matches a call of berth, up to where a shell would end it.
var call = regexp.MustCompile(`(?:^|[ (])berth ([a-z][a-z-]*)((?: [^|;&)<>]*)?)`) //nolint:gochecknoglobals // a constant

// TestDocumentedCommands checks that every command and option in the pages exists.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	checked := 0
	for _, page := range append(pages, "../../README.md") {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, snippet := range code.FindAllStringSubmatch(string(content), -1) {
			text := strings.ReplaceAll(snippet[1]+snippet[2], `\|`, "|")
			if !strings.Contains(snippet[0], "`") && !strings.Contains(text, "berth ") {
				continue
			}
			for _, found := range call.FindAllStringSubmatch(text, -1) {
				checked++
				checkCall(t, root, filepath.Base(page), found[1], strings.Fields(found[2]))
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d commands were found in the pages", checked)
	}
}

func checkCall(t *testing.T, root *cobra.Command, page, name string, words []string) {
	t.Helper()
	commands := root.Commands()
	at := slices.IndexFunc(commands, func(c *cobra.Command) bool { return c.Name() == name })
	if at < 0 {
		// A process named tunnel-server shows up in lists of processes.
		if !slices.Contains([]string{"completion", "help", "tunnel-server"}, name) {
			t.Errorf("%s: there is no command %q", page, name)
		}
		return
	}
	command := commands[at]
	for command.HasSubCommands() && len(words) > 0 {
		child := slices.IndexFunc(command.Commands(), func(c *cobra.Command) bool { return c.Name() == words[0] })
		if child < 0 {
			break
		}
		command, words = command.Commands()[child], words[1:]
	}
	if command.DisableFlagParsing { // the options are another program's, too
		return
	}
	for _, word := range words {
		if word == "--" {
			return
		}
		flag, long := strings.CutPrefix(word, "--")
		flag, _, _ = strings.Cut(strings.TrimRight(flag, ".,:"), "=")
		if long && flag != "help" && flag != "help-all" && command.Flags().Lookup(flag) == nil {
			t.Errorf("%s: berth %s has no option --%s", page, name, flag)
		}
	}
}
