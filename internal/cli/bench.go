package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/programs"
)

func newBenchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bench COMMAND",
		Short: "Measure what ways of running containers cost on this cluster",
		Long: `Measures what a way of running containers costs: the same programs on bare
metal, in pods and in other systems, in turn, and writes a report.

Its commands are list, plan, run, images, report and compare; each has its
--help. Every trial is recorded as soon as it is made, and repeating the command
continues where it was interrupted.`,
		Example: `  berth bench list
  berth bench plan quick
  berth bench run --plan quick --image bench.tar --out quick.jsonl
  berth bench report quick.jsonl --out report
  berth bench compare before.jsonl after.jsonl`,
		// The bench is a separate program, because people who run workloads do
		// not need its libraries for charts and statistics.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			directory, err := programs.Dir()
			if err != nil {
				return err
			}
			path := filepath.Join(directory, "berth-bench")
			err = syscall.Exec(path, append([]string{path}, args...), os.Environ())
			fmt.Fprintf(os.Stderr, "berth: start the bench (%s): %v; 'make berth-bench' builds it\n", path, err)
			return &result{exitcode.Unavailable}
		},
	}
}
