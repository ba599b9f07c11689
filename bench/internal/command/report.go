package command

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/report"
)

func newReport() *cobra.Command {
	out := "report"
	command := &cobra.Command{
		Use:   "report RECORDS...",
		Short: "Write a report of records: one HTML page, Markdown and CSV",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			lines, err := readAll(args)
			if err != nil {
				return err
			}
			files, err := report.Make(lines)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(out, 0o755); err != nil {
				return fmt.Errorf("make a folder for the report: %w", err)
			}
			for name, content := range files {
				if err := os.WriteFile(filepath.Join(out, name), content, 0o644); err != nil {
					return fmt.Errorf("write the report: %w", err)
				}
			}
			for _, line := range lines {
				if line.CutOff > 0 {
					fmt.Fprintf(os.Stderr, "line %d was cut off by a crash, and is ignored\n", line.CutOff)
				}
			}
			fmt.Fprintln(os.Stderr, filepath.Join(out, "report.html"))
			return nil
		},
	}
	command.Flags().StringVar(&out, "out", out, "`folder` for the report")
	return command
}

func newCompare() *cobra.Command {
	return &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two files of records",
		Long: `Compares the same cases on the same systems in two files of records. It prints
the ratio of B to A for each, with its 95 % confidence interval.`,
		Args: cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, args []string) error {
			a, err := readAll(args[:1])
			if err != nil {
				return err
			}
			b, err := readAll(args[1:])
			if err != nil {
				return err
			}
			return report.Compare(command.OutOrStdout(), a, b)
		},
	}
}

// readAll reads several files of records, which must exist.
func readAll(paths []string) (all []record.Line, err error) {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("read records: %w", err)
		}
		lines, err := record.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}
