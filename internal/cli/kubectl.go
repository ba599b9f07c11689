package cli

import (
	"github.com/spf13/cobra"
)

func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [JOB] COMMAND...",
		Short: "Run kubectl against the cluster of a running job",
		Long: `Runs kubectl, unchanged, on the cluster in your job. JOB is the Slurm job ID. It
can be omitted if there is only one cluster, or if BERTH_JOB names the job.

The connection to the job is a Slurm step (srun --overlap): no port is open, and
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
