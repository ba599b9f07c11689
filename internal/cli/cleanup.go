package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/launch"
)

func newCleanupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what killed runs left on this node",
		Long: `Removes the directories of your runs on this node whose processes are all gone,
as after a power failure. The next berth run does the same; an epilog can do it
at once. Running clusters are not touched.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			removed, err := launch.Cleanup(command.Context(), os.Getenv)
			for _, path := range removed {
				fmt.Fprintln(command.OutOrStdout(), "removed", path)
			}
			return err
		},
	}
}
