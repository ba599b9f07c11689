package cli

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
)

func newShellCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "shell [JOB] [-- COMMAND...]",
		Short: "Open a shell on this host whose kubectl and helm reach the cluster of a job",
		Long: `Starts your shell, or the command, on this host, with KUBECONFIG set and
kubectl, helm and berth in PATH for the cluster in your job. Whatever reads a
kubeconfig works in it: k9s, client libraries, scripts. The connection to the
job stays open until the shell or command ends.`,
		Example: `  berth shell 4711
  berth shell 4711 -- helm install db ./chart`,
		DisableFlagsInUseLine: true,
		Args: func(command *cobra.Command, args []string) error {
			if dash := command.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			return atMostAJob(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			job, rest := "", args
			if command.ArgsLenAtDash() != 0 {
				job, rest = takeJob(args)
			}
			session, err := reach(command.Context(), job)
			if err != nil {
				return err
			}
			defer session.Close()
			env := clusterEnv(session, "PATH="+session.Bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			program := rest
			if len(program) == 0 {
				program = []string{os.Getenv("SHELL")}
				if program[0] == "" {
					program[0] = "/bin/sh"
				}
				fmt.Fprintf(os.Stderr, "berth: kubectl and helm reach the cluster of job %s in this shell; 'exit' ends it\n", session.Target)
			}
			child, err := lookFor(program, session.Bin)
			if err != nil {
				return err
			}
			child.Env = env
			return runThroughTunnel(command.Context(), session, child)
		},
	}
}

// lookFor finds a program in a directory first, and then in PATH.
func lookFor(command []string, first string) (*exec.Cmd, error) {
	path, err := exec.LookPath(first + "/" + command[0])
	if err != nil {
		path, err = exec.LookPath(command[0])
	}
	if err != nil {
		return nil, &usageError{fmt.Errorf("run the command: %w", err)}
	}
	child := exec.Command(path, command[1:]...)
	child.Args[0] = command[0]
	return child, nil
}
