package batch

import (
	"fmt"
	"strings"
)

// Script describes the contents of a batch script.
type Script struct {
	// Name is the job's name, unless an option sets it.
	Name string
	// Options become lines of #SBATCH, so that the script describes the whole job.
	Options []Option
	// Berth is the absolute path of the program, and Args its arguments.
	Berth string
	Args  []string
	// Commands is the directory with the commands of Slurm.
	Commands string
	// Input is the program's standard input; empty means the job's.
	Input []byte
	// CommandLine is the command line that the script was made from, for the
	// reader.
	CommandLine []string
}

// missing is the exit code of a script that does not find its program. It equals
// exitcode.Unavailable.
const missing = 69

// Text renders the script. It is for any POSIX shell.
func (s Script) Text() []byte {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	fmt.Fprintf(&b, "#SBATCH --job-name=%s\n", quoteOption(s.Name))
	for _, option := range s.Options {
		switch {
		case option.Name == ":":
			b.WriteString("#SBATCH hetjob\n")
		case !listed(ofSubmission, option.Name):
			b.WriteString("#SBATCH " + optionLine(option.Words) + "\n")
		}
	}
	fmt.Fprintf(&b, "# %s\n", strings.ReplaceAll(Join(s.CommandLine), "\n", " "))
	fmt.Fprintf(&b, "\nberth=%s\n", Quote(s.Berth))
	fmt.Fprintf(&b, `if [ ! -x "$berth" ]; then
  echo "berth: node ${SLURMD_NODENAME:-$(hostname)} has no $berth: put berth where all nodes see it, such as your home directory, and submit from there" >&2
  exit %d
fi
`, missing)
	if s.Commands != "" {
		// --export may have left PATH out.
		fmt.Fprintf(&b, "command -v srun >/dev/null || PATH=$PATH:%s\nexport PATH\n", Quote(s.Commands))
	}
	fmt.Fprintf(&b, `exec "$berth" %s`, Join(s.Args))
	if len(s.Input) == 0 {
		b.WriteString("\n")
		return []byte(b.String())
	}
	end := "END_OF_MANIFESTS"
	text := strings.ReplaceAll(string(s.Input), "\r\n", "\n") // sbatch refuses scripts with DOS line ends
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for strings.Contains("\n"+text, "\n"+end+"\n") {
		end += "_"
	}
	fmt.Fprintf(&b, " <<'%s'\n%s%s\n", end, text, end)
	return []byte(b.String())
}

// Join quotes words for a shell and joins them to one line.
func Join(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = Quote(word)
	}
	return strings.Join(quoted, " ")
}

// Quote quotes a word for a shell where that is necessary.
func Quote(word string) string {
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// plain holds the characters that need no quotes.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%"

// optionLine writes an option as sbatch reads it from a script, which is not
// quite as a shell does.
func optionLine(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quoteOption(word)
	}
	return strings.Join(quoted, " ")
}

// quoteOption quotes a word for a #SBATCH line. Within double quotes sbatch removes a
// backslash and keeps the character after it. A line cannot be continued, so a newline
// becomes a space.
func quoteOption(word string) string {
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	word = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(word)
	return `"` + word + `"`
}
