package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Columns of the help text. The other commands of berth have the same, but their code is in
// another module.
const (
	helpWidth     = 80
	optionIndent  = 30
	commandIndent = 16
)

// writeHelp prints the help of a command in the same format as the other commands of berth.
func writeHelp(command *cobra.Command, _ []string) {
	fmt.Fprint(command.OutOrStdout(), helpText(command))
}

func helpText(command *cobra.Command) string {
	var text strings.Builder
	about := command.Long
	if about == "" {
		about = command.Short + "."
	}
	usage := command.CommandPath() + " COMMAND [OPTIONS] [ARGUMENTS]"
	if command.HasParent() {
		usage = strings.ReplaceAll(strings.TrimSuffix(command.UseLine(), " [flags]"), "[flags]", "[OPTIONS]")
	}
	fmt.Fprintf(&text, "Usage: %s\n\n%s\n", usage, about)
	if command.HasAvailableSubCommands() {
		text.WriteString("\nCommands:\n")
		for _, child := range command.Commands() {
			if child.IsAvailableCommand() && child.Name() != "help" {
				writeEntry(&text, child.Name(), child.Short, commandIndent)
			}
		}
	}
	text.WriteString("\nOptions:\n")
	command.InitDefaultHelpFlag()
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		kind, description := pflag.UnquoteUsage(flag)
		name := "    --" + flag.Name
		switch {
		case flag.Name == "help":
			name, description = "-h, --help", "show this help message"
		case kind != "":
			name += "=" + kind
		}
		if flag.DefValue != "" && flag.DefValue != "false" && flag.DefValue != "[]" {
			description += " (default: " + flag.DefValue + ")"
		}
		writeEntry(&text, name, description, optionIndent)
	})
	if command.HasExample() {
		fmt.Fprintf(&text, "\nExamples:\n%s\n", command.Example)
	}
	if command.HasAvailableSubCommands() {
		fmt.Fprintf(&text, "\nSee '%s COMMAND --help' for details.\n", command.CommandPath())
	}
	return text.String()
}

// writeEntry writes a name, and beside it the description, wrapped at helpWidth. A name
// that is too long for the indent has its own line.
func writeEntry(text *strings.Builder, name, description string, indent int) {
	line := fmt.Sprintf("%-*s", indent, "  "+name)
	if len(line) > indent || !strings.HasSuffix(line, "  ") {
		fmt.Fprintln(text, strings.TrimRight(line, " "))
		line = strings.Repeat(" ", indent)
	}
	empty := len(line)
	for word := range strings.FieldsSeq(description) {
		if len(line) > empty && len(line)+1+len(word) > helpWidth {
			fmt.Fprintln(text, line)
			line = strings.Repeat(" ", indent)
		}
		if len(line) > empty {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(text, line)
}
