package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func newLogsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logs [JOB] [POD | TYPE/NAME] [flags of kubectl logs]",
		Short: "Print the logs of pods in the cluster of a job",
		Long: `Prints the logs of a pod, or of a Job, Deployment and so on, as kubectl logs
does and with its flags. Without a name, prints the logs of all pods of the
namespace, each line with its pod's name.`,
		Example: `  berth logs
  berth logs 4711 -f
  berth logs 4711 job/train -f --tail=100`,
		DisableFlagParsing: true, // they are kubectl's
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 && (args[len(args)-1] == "--help" || args[len(args)-1] == "-h") {
				return command.Help()
			}
			job, args := takeJob(args)
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			return runProgram(command.Context(), session, "kubectl", append([]string{"logs"}, logArguments(args)...)...)
		},
	}
}

// maxLogs bounds the logs that are followed at once if no pod is named.
const maxLogs = "--max-log-requests=500"

// logArguments returns the arguments for kubectl logs. If the user names no pod,
// they select all pods: kubectl needs a selector, and no pod has every label.
func logArguments(args []string) []string {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-n" || arg == "--namespace" || arg == "-c" || arg == "--container" ||
			arg == "--tail" || arg == "--since" || arg == "--since-time" || arg == "--limit-bytes" || arg == "--context":
			i++ // its value
		case arg == "-l" || arg == "--selector" || strings.HasPrefix(arg, "-l") || strings.HasPrefix(arg, "--selector="):
			return args
		case !strings.HasPrefix(arg, "-"):
			return args
		}
	}
	all := []string{"--selector=!berth.dev/none", "--all-containers", "--prefix", "--ignore-errors", maxLogs}
	if !strings.Contains(" "+strings.Join(args, " "), " --tail") {
		all = append(all, "--tail=-1")
	}
	return append(all, args...)
}
