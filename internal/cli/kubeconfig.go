package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func newKubeconfigCommand() *cobra.Command {
	var path bool
	command := &cobra.Command{
		Use:   "kubeconfig [JOB]",
		Short: "Print a kubeconfig for the cluster of a running job",
		Long: `Prints a kubeconfig that gives your programs on this host access to the cluster
of a job while the connection to the job is open; 'berth proxy' keeps it open.
The key stays in the memory of a process, and the kubeconfig has its path there,
so it is useless to other users and on other hosts.`,
		Example: `  export KUBECONFIG=$(berth kubeconfig --path 4711)`,
		Args:    atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			job, _ := takeJob(args)
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			if path {
				_, err = fmt.Fprintln(command.OutOrStdout(), session.Kubeconfig)
				return err
			}
			content, err := os.ReadFile(session.Kubeconfig)
			if err != nil {
				return err
			}
			_, err = command.OutOrStdout().Write(content)
			return err
		},
	}
	command.Flags().BoolVar(&path, "path", false, "print the path of the file instead")
	return command
}

func newProxyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "proxy [JOB]",
		Short: "Keep the connection to the cluster of a job open for other tools",
		Long: `Keeps the connection to the job open until Ctrl-C, or until the cluster ends,
and prints the line that lets other tools (k9s, helm, client libraries) use it.
Only your own programs on this host can use it.`,
		Args: atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			job, _ := takeJob(args)
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			fmt.Fprintf(command.OutOrStdout(), "export KUBECONFIG=%s\n", session.Kubeconfig)
			fmt.Fprintf(os.Stderr, "berth: the cluster of job %s is reached with this in another terminal; Ctrl-C ends it\n", session.Target)
			select {
			case <-command.Context().Done():
				return nil
			case <-session.Lost():
				return session.Check()
			}
		},
	}
}
