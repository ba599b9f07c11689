package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/job/slurm"
)

func newDoctorCommand() *cobra.Command {
	output := "text"
	doctor := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine allows, and how to fix what is missing",
		Long: `Tests everything that berth needs from this machine, as this user. Inside a job,
the job's limits and devices count, so run it there, too:
srun -N1 -n1 berth doctor. At the end it lists the settings that files and the
environment change, and where each comes from. It ends with status 0 if berth
can run and 1 if it cannot.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			preferences, err := readPreferences(os.Getenv)
			var named []string
			if err == nil {
				named, _ = preferences.valuesOf("device", true)
			}
			report := diagnosis{Report: examine(cmd.Context(), named)}
			if err == nil {
				report.Settings, err = preferences.inEffect()
			}
			if err := errors.Join(writeReport(cmd.OutOrStdout(), report, output), err); err != nil {
				return err
			}
			if !report.Runs {
				return &result{code: 1} // the report has said everything
			}
			return nil
		},
	}
	doctor.Flags().StringVarP(&output, "output", "o", output, "text or json")
	doctor.AddCommand(&cobra.Command{
		Use:                "trial",
		Hidden:             true, // the children that doctor makes of itself
		DisableFlagParsing: true,
		Run: func(_ *cobra.Command, arguments []string) {
			os.Exit(probe.RunTrial(arguments, os.Stdin, os.Stdout))
		},
	})
	return doctor
}

func examine(ctx context.Context, devices []string) probe.Report {
	libexec := ""
	if self, err := os.Executable(); err == nil {
		libexec = filepath.Join(filepath.Dir(filepath.Dir(self)), "libexec", "berth")
	}
	trials := probe.Trials{Command: []string{"doctor", "trial"}}
	if job, inJob := slurm.Here(); inJob && job.Place != slurm.PlaceShell {
		trials.Memory = func(ctx context.Context, limit probe.Memory) probe.Memory {
			limit, _ = slurm.LimitMemory(ctx, job, limit, slurm.AskSlurm) // the report says of Slurm itself whether it answers
			return limit
		}
	}
	report := probe.Local().Examine(ctx, trials, libexec)
	report.Results = append(report.Results, slurm.Check(ctx, os.Getenv, slurm.AskSlurm)...)
	report.Results = append(report.Results, checkDevices(os.Getenv, devices))
	report.Conclude()
	return report
}

// diagnosis is the report, and the settings that differ from berth's defaults.
type diagnosis struct {
	probe.Report
	Settings []setting `json:"settings,omitempty"`
}

func writeReport(w io.Writer, report diagnosis, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	page := page{width: 100}
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		page.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			page.width = min(max(columns, 60), 120)
		}
	}
	_, err := io.WriteString(w, page.render(report))
	return err
}

// page lays a report out as text. Only prose is wrapped: a command stays on
// its line, so that it can be copied.
type page struct {
	width  int
	colour bool
}

const (
	colourRed    = "31"
	colourGreen  = "32"
	colourYellow = "33"
	colourBold   = "1"
)

func (p page) paint(colour, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (p page) render(report diagnosis) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: Linux %s, user %s (uid %d)\n", cmp.Or(report.Host, "this machine"), report.Kernel, report.User, report.UID)
	titles := 0
	for _, result := range report.Results {
		titles = max(titles, len(result.Title))
	}
	for _, level := range []probe.Level{probe.Required, probe.Recommended, probe.Optional} {
		fmt.Fprintf(&b, "\n%s\n", p.paint(colourBold, string(level)))
		for _, result := range report.Results {
			if result.Level == level {
				p.result(&b, result, titles)
			}
		}
	}
	if len(report.Settings) > 0 {
		fmt.Fprintf(&b, "\n%s\n", p.paint(colourBold, "settings"))
		names, values := 0, 0
		for _, s := range report.Settings {
			names, values = max(names, len(s.Name)), max(values, len(s.Value))
		}
		for _, s := range report.Settings {
			fmt.Fprintf(&b, "  %-*s  %-*s  %s\n", names, s.Name, values, s.Value, s.From)
		}
	}
	colour := colourGreen
	if !report.Runs {
		colour = colourRed
	}
	fmt.Fprintf(&b, "\n%s\n", p.paint(colour, report.Verdict))
	return b.String()
}

// result writes a result: its state, title and finding, then costs and remedies.
func (p page) result(b *strings.Builder, result probe.Result, titles int) {
	word, colour := map[probe.State]string{probe.Yes: "yes", probe.No: "no", probe.Degraded: "less"}[result.OK], colourYellow
	switch {
	case result.OK == probe.Yes:
		colour = colourGreen
	case result.OK == probe.No && result.Level == probe.Required:
		colour = colourRed
	}
	indent := 2 + 6 + titles + 2
	fmt.Fprintf(b, "  %s%*s%-*s  ", p.paint(colour, cmp.Or(word, "?")), 6-len(cmp.Or(word, "?")), "", titles, result.Title)
	p.wrap(b, result.Found, indent)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "%*s%-7s", indent, "", name)
			p.wrap(b, text, indent+7)
		}
	}
	command := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "%*s%-7s%s\n", indent, "", name, text)
		}
	}
	line("costs:", result.Cost)
	command("you:", result.Remedy.User)
	command("admin:", result.Remedy.Admin)
}

// wrap writes prose whose first line starts at a column, and ends the line.
func (p page) wrap(b *strings.Builder, text string, column int) {
	used := column
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case used+1+len(word) > p.width:
			fmt.Fprintf(b, "\n%*s", column, "")
			used = column
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += len(word)
	}
	b.WriteByte('\n')
}
