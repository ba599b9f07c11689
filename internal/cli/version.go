package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cluster"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of berth and of its Kubernetes",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(command.OutOrStdout(), "berth %s\nkubernetes %s\n", cluster.Version(), cluster.KubernetesVersion)
			return err
		},
	}
}
