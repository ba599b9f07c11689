package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/programs"
)

// versions is the output of berth version --output json.
type versions struct {
	Berth      string             `json:"berth"`
	Kubernetes string             `json:"kubernetes"`
	Platform   string             `json:"platform"`
	Go         string             `json:"go"`
	Programs   []programs.Program `json:"programs"`
}

func newVersionCommand() *cobra.Command {
	output := "text"
	version := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of berth and the programs that come with it",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			switch output {
			case "text":
				_, err := fmt.Fprintf(command.OutOrStdout(), "berth %s\nkubernetes %s\n", cluster.Version(), cluster.KubernetesVersion)
				return err
			case "json":
				return writeVersions(command)
			}
			return &usageError{fmt.Errorf("unknown --output %q: it is text or json", output)}
		},
	}
	version.Flags().StringVarP(&output, "output", "o", output, "text, or json with every program that comes with berth")
	return version
}

// writeVersions writes the versions of all programs as JSON. It reads some hundred
// kilobytes of each program. The text output omits that, because scripts call it at
// every start.
func writeVersions(command *cobra.Command) error {
	directory, err := programs.Dir()
	if err != nil {
		return err
	}
	shipped, err := programs.List(directory)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(command.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(versions{
		Berth:      cluster.Version(),
		Kubernetes: cluster.KubernetesVersion,
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
		Go:         runtime.Version(),
		Programs:   shipped,
	})
}
