package command

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"berth.dev/berth/bench/internal/link"
)

// newLink returns the command that the operator of a link runs.
func newLink() *cobra.Command {
	name, device := "cni", "eth0"
	var pids []string
	command := &cobra.Command{
		Use:   "link [flags] [LINK -- COMMAND...]",
		Short: "Set up a plan's link on this host while a command runs (needs root)",
		Long: `Sets up a plan's link on this host (MTU, offloads, rate, loss and tuning
profile), runs a command, and restores the old settings, even if it is killed.
It reports settings that this host does not support. The records of
'berth bench run --link' have the settings in effect. Without a link it lists
the plan's links.`,
		Example: `  berth bench link --plan cni --device eth0 kernel-optimizations-9000 -- sleep 1h`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return fmt.Errorf("link %s: give the command to run with it after '--'", args[0])
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			p, err := readPlan(name, nil)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				for _, name := range slices.Sorted(maps.Keys(p.Links)) {
					fmt.Fprintf(command.OutOrStdout(), "%s\t%s\n", name, p.Links[name])
				}
				return nil
			}
			if err := p.Under(args[0]); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			warn := func(what string) { fmt.Fprintln(os.Stderr, "berth bench:", what) }
			code, err := link.For(command.Context(), self, p.Links[args[0]], device, pids, args[1:], warn)
			if err == nil && code != 0 {
				err = fmt.Errorf("%s: exit code %d", args[1], code)
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&name, "plan", name, "name of a built-in `plan`, or a file")
	flags.StringVar(&device, "device", device, "network `interface` of the link")
	flags.StringArrayVar(&pids, "in", nil, "id of a `process` whose network namespace to use as a host, instead of this one's; can be repeated")
	return command
}
