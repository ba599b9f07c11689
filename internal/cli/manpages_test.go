package cli

import (
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
)

// manPages returns the pages of a command and its subcommands by file name, in
// roff with the macros of man(7).
func manPages(root *cobra.Command) map[string]string {
	pages := map[string]string{manName(root) + ".1": manPage(root)}
	for _, command := range root.Commands() {
		if command.IsAvailableCommand() && command.Name() != "help" && command.Name() != "completion" {
			maps.Copy(pages, manPages(command))
		}
	}
	return pages
}

func manPage(command *cobra.Command) string {
	var page strings.Builder
	name := manName(command)
	fmt.Fprintf(&page, ".\\\" Made from berth's command line.\n.TH %s 1 \"\" berth \"User Commands\"\n", quoteRoff(strings.ToUpper(name)))
	fmt.Fprintf(&page, ".SH NAME\n%s \\- %s\n", roff(name), roff(command.Short))
	fmt.Fprintf(&page, ".SH SYNOPSIS\n.B %s\n", roff(useLine(command)))
	page.WriteString(".SH DESCRIPTION\n")
	for i, paragraph := range strings.Split(strings.TrimSpace(command.Long), "\n\n") {
		if paragraph == "" {
			paragraph = command.Short + "."
		}
		if i > 0 {
			page.WriteString(".PP\n")
		}
		writeParagraph(&page, paragraph)
	}
	for i, s := range append(commandSections(command), flagSections(command)...) {
		if i == 0 && command.HasAvailableSubCommands() {
			page.WriteString(".SH COMMANDS\n")
		} else if i == len(commandSections(command)) {
			page.WriteString(".SH OPTIONS\n")
		}
		if s.title != "Options" {
			fmt.Fprintf(&page, ".SS %s\n", quoteRoff(s.title))
		}
		for _, e := range s.lines {
			fmt.Fprintf(&page, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(e.name)), roff(e.text))
		}
	}
	if command.HasExample() {
		fmt.Fprintf(&page, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(dedent(command.Example)))
	}
	page.WriteString(manEnd(command))
	return page.String()
}

// manEnd returns the common end of all pages.
func manEnd(command *cobra.Command) string {
	var text strings.Builder
	if !command.HasParent() {
		text.WriteString(".SH ENVIRONMENT\n")
		for _, v := range []entry{
			{"BERTH_OPTION", "sets an option of berth run that is not given, in capitals and with _ for -: BERTH_PORT_RANGE for --port-range"},
			{"BERTH_JOB", "the job of commands that name none"},
			{"BERTH_CONFIG", "a file to read instead of /etc/berth/config.yaml"},
			{"BERTH_REMOTE_PATH", "path of berth on the nodes, if it is not the same as on the login host"},
			{"BERTH_TUNNEL_IDLE", "how long an unused tunnel into a job stays open, such as 1h"},
			{"NO_COLOR", "if set, nothing is coloured"},
		} {
			fmt.Fprintf(&text, ".TP\n.B %s\n%s\n", roff(v.name), roff(v.text))
		}
		text.WriteString(".SH FILES\n")
		for _, f := range []entry{
			{"/etc/berth/config.yaml", "options of the site"},
			{"~/.config/berth/config.yaml", "options of the user, which take precedence"},
		} {
			fmt.Fprintf(&text, ".TP\n.I %s\n%s\n", roff(f.name), roff(f.text))
		}
	}
	text.WriteString(".SH EXIT STATUS\nThe exit status of the workload, of the command, or of kubectl. If berth itself fails: 64 for a wrong command line,\n" +
		"65 for a wrong manifest, 66 for a file that cannot be read, 69 if something that is needed is unavailable, 70 if a\n" +
		"part of the cluster failed, 73 if there is no room for the run's files, 74 if the workload's output could not be\n" +
		"passed on, 75 for a workload that cannot start, 78 for a setting that is wrong or does not fit the job, 124 for a\n" +
		"time limit, 128 plus the signal number for a signal.\n")
	var also []string
	if command.HasParent() {
		also = append(also, ".BR berth (1)")
		for _, sibling := range command.Parent().Commands() {
			if sibling != command && sibling.GroupID == command.GroupID && sibling.IsAvailableCommand() && sibling.Name() != "help" && sibling.Name() != "completion" {
				also = append(also, ".BR "+roff(manName(sibling))+" (1)")
			}
		}
	} else {
		also = []string{".BR srun (1)", ".BR sbatch (1)", ".BR kubectl (1)"}
	}
	fmt.Fprintf(&text, ".SH SEE ALSO\n%s\n", strings.Join(also, ",\n"))
	return text.String()
}

// writeParagraph writes text; one whose lines are indented keeps them.
func writeParagraph(page *strings.Builder, text string) {
	if strings.HasPrefix(text, "  ") {
		fmt.Fprintf(page, ".nf\n%s\n.fi\n", roff(text))
		return
	}
	fmt.Fprintln(page, roff(text))
}

func dedent(text string) string {
	return strings.TrimPrefix(strings.ReplaceAll(text, "\n  ", "\n"), "  ")
}

// roff escapes text: no line of it is a request, and its dashes can be copied.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "~", `\(ti`, "^", `\(ha`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

func quoteRoff(text string) string { return `"` + strings.ReplaceAll(roff(text), `"`, `\(dq`) + `"` }
