package command

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/plans"
)

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List all cases, systems and plans",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			to, known := command.OutOrStdout(), campaign.Known()
			fmt.Fprintln(to, "Cases:")
			writeKinds(to, known.Cases)
			fmt.Fprintln(to, "\nDrivers of systems:")
			writeKinds(to, known.Drivers)
			fmt.Fprintln(to, "\nPlans:")
			for _, name := range plans.Names() {
				p, err := readPlan(name, nil)
				if err != nil {
					return err
				}
				trials, long := campaign.Estimate(p, nil)
				fmt.Fprintf(to, "  %-14s %s (%d trials, about %s)\n", name, p.Title, trials, long.Round(time.Minute))
			}
			return nil
		},
	}
}

func writeKinds(to io.Writer, kinds map[string]plan.Kind) {
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		fmt.Fprintf(to, "  %-14s %s\n", name, k.Summary)
		for _, p := range k.Parameters {
			otherwise := ""
			if p.Default != "" {
				otherwise = " (" + p.Default + ")"
			}
			fmt.Fprintf(to, "      %s%s: %s\n", p.Name, otherwise, p.Help)
		}
	}
}

func newPlan() *cobra.Command {
	out := ""
	command := &cobra.Command{
		Use:   "plan PLAN",
		Short: "Check a plan, and show what it measures and how long it takes",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			p, err := readPlan(args[0], nil)
			if err != nil {
				return err
			}
			var before []record.Line
			if out != "" {
				if before, err = record.ReadFile(out); err != nil {
					return err
				}
			}
			return preview(command.OutOrStdout(), p, before)
		},
	}
	command.Flags().StringVar(&out, "out", "", "`file` with existing records, whose trials are not counted")
	return command
}

// preview lists the remaining trials of a plan.
func preview(to io.Writer, p *plan.Plan, before []record.Line) error {
	trials, long := campaign.Estimate(p, before)
	fmt.Fprintf(to, "%s: %s\nseed %d; %d host(s), %d core(s) and %d MB each\n", p.Name, p.Title, p.Seed, p.Hosts(campaign.Known()), p.CPUs, p.MemoryMB)
	for _, c := range p.Cases {
		fmt.Fprintf(to, "  %s: %d times after %d warm-up(s), on %s\n", c.Name, c.Repetitions, c.WarmUps, strings.Join(c.Systems, ", "))
	}
	_, err := fmt.Fprintf(to, "%d trials to make, about %s\n", trials, long.Round(time.Second))
	return err
}
