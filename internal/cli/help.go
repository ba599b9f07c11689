package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Groups of commands, in the order of berth help.
const (
	groupRun   = "run"
	groupReach = "reach"
	groupWatch = "watch"
	groupImage = "image"
	groupHost  = "host"
)

func commandGroups() []*cobra.Group {
	return []*cobra.Group{
		{ID: groupRun, Title: "Run workloads"},
		{ID: groupReach, Title: "Connect to a running job, from the login host or from inside"},
		{ID: groupWatch, Title: "See what is running"},
		{ID: groupImage, Title: "Keep images for later runs"},
		{ID: groupHost, Title: "This machine, and berth itself"},
	}
}

// optionSections returns the headings under which options are listed, in order.
// Options without a heading come first.
func optionSections() []struct {
	title string
	names []string
} {
	return []struct {
		title string
		names []string
	}{
		{"Workload", []string{"file", "logs", "own-cluster", "here", "keep", "grace", "slurm-jobs", "for"}},
		{"Files of Slurm jobs", []string{"results-image", "results-root", "results-volume", "s3-endpoint"}},
		{"Slurm jobs as pods", []string{"partition-nodes", "logs-address", "logs-cert", "logs-client"}},
		{"Existing cluster", []string{"kubeconfig", "namespace", "pin"}},
		{"Objects that outlive a job", []string{"state", "state-secrets"}},
		{"Images", []string{"image", "no-pull", "registry", "snapshotter", "image-cache", "image-cache-limit", "image-budget", "lazy-pull", "platform"}},
		{"Nodes", []string{"nodes-per-host", "pods-per-node", "node-wait", "ha", "fail-fast", "state-dir", "one-uid", "foreign-owners"}},
		{"Network", []string{"port-range", "interface", "carrier", "fast-path", "ip-family", "address-block", "deny-egress", "publish", "rendezvous-dir"}},
		{"Folders and devices of the host", []string{"mount", "shared-volumes", "device"}},
		{"Messages", []string{"quiet", "verbose", "debug-dir"}},
		{"Help", []string{"help", "version"}},
	}
}

// section is a heading and its entries.
type section struct {
	title string
	lines []entry
}

// entry is an option or a command, and its description.
type entry struct{ name, text string }

// helpWidth is the number of columns of a terminal of unknown size. The indents are the
// columns where the text beside options and commands begins.
const (
	helpWidth     = 80
	optionIndent  = 30
	commandIndent = 16
)

// shortHelpLines is the number of lines that fit on two screens above the shell's
// prompt. Longer help leaves rare options to --help-all.
const shortHelpLines = 47

// commonOptions returns the options that short help shows.
func commonOptions() []string {
	return []string{
		"file", "image", "logs", "mount", "publish", "device", "state-dir", "no-pull", "ha", "print", "wait",
		"allow-users", "trust-namespace", "quiet", "verbose", "help",
	}
}

// helpWriter returns a help function for cobra. It writes help in the style of
// Slurm: in full, or as much as fits two screens.
func helpWriter(full bool) func(*cobra.Command, []string) {
	return func(command *cobra.Command, _ []string) {
		width := helpWidth
		if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
			width = min(max(columns, 60), 110)
		}
		text := helpText
		if !full {
			text = briefHelp
		}
		fmt.Fprint(command.OutOrStdout(), text(command, width))
	}
}

// briefHelp returns the full help of a command if it fits two screens, and short
// help otherwise.
func briefHelp(command *cobra.Command, width int) string {
	text := helpText(command, width)
	if strings.Count(text, "\n") > shortHelpLines {
		return shortHelp(command, width)
	}
	return text
}

// manName returns the name of a command's page.
func manName(command *cobra.Command) string {
	return strings.ReplaceAll(command.CommandPath(), " ", "-")
}

// cutHelpAll replaces --help-all by --help, and reports whether it was there. It
// ignores words after "--", which belong to another program.
func cutHelpAll(args []string) ([]string, bool) {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	at := slices.Index(args[:end], "--help-all")
	if at < 0 {
		return args, false
	}
	args = slices.Clone(args)
	args[at] = "--help"
	return args, true
}

func helpText(command *cobra.Command, width int) string {
	var text strings.Builder
	writeAbout(&text, command, command.Long)
	writeSections(&text, commandSections(command), commandIndent, width)
	writeSections(&text, flagSections(command), optionIndent, width)
	writeExamples(&text, command)
	switch {
	case !command.HasParent():
		text.WriteString("\nSee 'berth COMMAND --help' or 'man berth-COMMAND' for details.\n")
	case command.Name() != "help" && command.Name() != "completion" && command.Parent().Name() != "completion":
		fmt.Fprintf(&text, "\nSee also 'man %s'.\n", manName(command))
	}
	return text.String()
}

// shortHelp returns the first paragraph about a command, its subcommands, its common options, and
// the names of the groups that --help-all adds.
func shortHelp(command *cobra.Command, width int) string {
	var text strings.Builder
	about, _, _ := strings.Cut(command.Long, "\n\n")
	writeAbout(&text, command, about)
	common := section{title: "Common options"}
	var groups []string
	for _, s := range flagSections(command) {
		shown := len(common.lines)
		for _, e := range s.lines {
			_, name, _ := strings.Cut(e.name, "--")
			name, _, _ = strings.Cut(name, "=")
			if slices.Contains(commonOptions(), name) {
				common.lines = append(common.lines, e)
			}
		}
		if len(common.lines)-shown < len(s.lines) {
			groups = append(groups, s.title)
		}
	}
	writeSections(&text, commandSections(command), commandIndent, width)
	writeSections(&text, []section{common}, optionIndent, width)
	writeExamples(&text, command)
	var more strings.Builder
	writeEntry(&more, entry{"", fmt.Sprintf("'%s --help-all' and 'man %s' have details and all options: %s.",
		command.CommandPath(), manName(command), strings.Join(groups, "; "))}, 0, width)
	fmt.Fprintf(&text, "\n%s", more.String())
	return text.String()
}

func writeAbout(text *strings.Builder, command *cobra.Command, about string) {
	if about = strings.TrimSpace(about); about == "" {
		about = command.Short + "."
	}
	fmt.Fprintf(text, "Usage: %s\n\n%s\n", useLine(command), about)
}

func writeExamples(text *strings.Builder, command *cobra.Command) {
	if command.HasExample() {
		fmt.Fprintf(text, "\nExamples:\n%s\n", command.Example)
	}
}

// useLine returns a command's usage.
func useLine(command *cobra.Command) string {
	if !command.HasParent() {
		return command.Name() + " COMMAND [OPTIONS] [ARGUMENTS]"
	}
	return strings.ReplaceAll(strings.TrimSuffix(command.UseLine(), " [flags]"), "[flags]", "[OPTIONS]")
}

func commandSections(command *cobra.Command) []section {
	var sections []section
	for _, group := range command.Groups() {
		s := section{title: group.Title}
		for _, child := range command.Commands() {
			if child.GroupID == group.ID && child.IsAvailableCommand() {
				s.lines = append(s.lines, entry{child.Name(), child.Short})
			}
		}
		sections = append(sections, s)
	}
	return sections
}

func flagSections(command *cobra.Command) []section {
	command.InitDefaultHelpFlag()
	own := section{title: "Options"}
	sections := make([]section, len(optionSections()))
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		kind, usage := pflag.UnquoteUsage(flag)
		e := entry{"    --" + flag.Name, usage}
		if flag.Shorthand != "" {
			e.name = "-" + flag.Shorthand + ", --" + flag.Name
		}
		if flag.NoOptDefVal == "" && kind != "" {
			e.name += "=" + kind
		}
		switch flag.Name {
		case "help":
			e.text = "show this help message"
		case "version":
			e.text = "show the version"
		}
		for i, s := range optionSections() {
			if slices.Contains(s.names, flag.Name) {
				sections[i].title = s.title
				sections[i].lines = append(sections[i].lines, e)
				return
			}
		}
		own.lines = append(own.lines, e)
	})
	return slices.DeleteFunc(append([]section{own}, sections...), func(s section) bool { return len(s.lines) == 0 })
}

func writeSections(text *strings.Builder, sections []section, indent, width int) {
	for _, s := range sections {
		fmt.Fprintf(text, "\n%s:\n", s.title)
		for _, e := range s.lines {
			writeEntry(text, e, indent, width)
		}
	}
}

// writeEntry writes a name and its wrapped description beside it.
func writeEntry(text *strings.Builder, e entry, indent, width int) {
	line := ""
	if e.name != "" {
		line = "  " + e.name
	}
	if line != "" && len(line) > indent-2 {
		text.WriteString(line + "\n")
		line = ""
	}
	line += strings.Repeat(" ", indent-len(line))
	used := indent
	for i, word := range strings.Fields(e.text) {
		if i > 0 && used+1+len(word) > width {
			text.WriteString(line + "\n")
			line, used = strings.Repeat(" ", indent), indent
		} else if i > 0 {
			line += " "
			used++
		}
		line += word
		used += len(word)
	}
	text.WriteString(strings.TrimRight(line, " ") + "\n")
}
