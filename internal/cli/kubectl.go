package cli

import (
	"github.com/spf13/cobra"
)

func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [JOB] COMMAND...",
		Short: "Run kubectl against the cluster of a running job",
		Long: `Runs kubectl, whole and unchanged, on the cluster that a job of yours runs.
JOB is Slurm's number of the job; it can be left out where there is one cluster
only, or BERTH_JOB names it.

The way into the job is a step of Slurm's (srun --overlap): no port is open, and
no ssh is needed. It stays open for a while, so that the next call is faster.`,
		Example: `  berth kubectl get pods
  berth kubectl 4711 exec -it web -- sh
  berth kubectl 4711 logs -f job/train`,
		DisableFlagParsing: true, // they are kubectl's
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return command.Help()
			}
			job, args := takeJob(args)
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			return runProgram(command.Context(), session, "kubectl", args...)
		},
	}
}
