package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/launch"
)

func newRunCommand() *cobra.Command {
	var spec cluster.Spec
	var quiet, verbose bool
	command := &cobra.Command{
		Use:   "run [flags] [-f MANIFEST]... [--image ARCHIVE]... [-- COMMAND...]",
		Short: "Start a cluster, run a workload on it, and take it down",
		Long: `Starts a cluster, applies the manifests, follows the logs of the Jobs and bare
Pods in them, and ends with their exit code. With a command, runs that on the
host beside the cluster, with KUBECONFIG set and kubectl and helm in PATH, and
ends with its exit code. The cluster is gone when berth run returns.

In a job with several nodes it is one cluster over all of them.

The workload's output goes to standard output and standard error; what berth
itself has to say goes to standard error.`,
		Example: `  berth run -f job.yaml --image app.tar
  berth run -- ./script.sh
  srun -N3 berth run -f job.yaml`,
		DisableFlagsInUseLine: true, // they come before the command
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 0 && command.ArgsLenAtDash() != 0 {
				return &usageError{fmt.Errorf("unexpected argument %q: a command comes after '--'", args[0])}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if quiet && verbose {
				return &usageError{errors.New("--quiet and --verbose exclude each other")}
			}
			spec.Command = args
			progress := newProgress(os.Stderr, quiet, verbose)
			code, err := launch.Run(command.Context(), launch.Options{
				Spec:  spec,
				Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
				Getenv: os.Getenv,
				Report: progress.step,
				Log:    slog.New(progress),
			})
			progress.end()
			if err != nil {
				return err
			}
			if code != 0 {
				return &result{code}
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringArrayVarP(&spec.Manifests, "file", "f", nil, "`manifest` to apply; - is standard input; can be repeated")
	flags.StringArrayVar(&spec.Images, "image", nil, "image `archive` (OCI or docker-save), or NAME=ARCHIVE; can be repeated")
	flags.BoolVar(&spec.NoPull, "no-pull", false, "pull no image from the network")
	flags.StringArrayVar(&spec.Registries, "registry", nil, "pull the images of a registry from elsewhere, as `NAME=URL`; http:// is allowed; can be repeated")
	flags.BoolVar(&spec.OneUID, "one-uid", false, "do without subordinate user ids")
	flags.StringVar(&spec.AddressBlock, "address-block", "", "`range` of addresses for pods, Services and nodes, such as 100.64.0.0/14 (default: one that clashes with no route)")
	flags.StringVar(&spec.StateDir, "state-dir", "", "`directory` on a local disk for the run's files (default: chosen)")
	flags.IntVar(&spec.NodesPerHost, "nodes-per-host", 0, "`number` of Kubernetes nodes on each machine, to try things out (default 1)")
	flags.DurationVar(&spec.NodeWait, "node-wait", 0, "`time` for which the nodes of a job wait for each other (default 1m)")
	flags.BoolVar(&spec.FailFast, "fail-fast", false, "end the run when a node is lost")
	flags.StringVar(&spec.Network.Ports, "port-range", "", "`ports` to use between nodes (default 21000-28999)")
	flags.StringVar(&spec.Network.Interface, "interface", "", "network interface `name` for the packets of pods between nodes (default: that of the nodes' names)")
	flags.StringVar(&spec.Network.Carrier, "carrier", "", "`how` the packets of pods travel between nodes: udp or tcp (default: udp where it gets through)")
	flags.StringVar(&spec.SharedVolumes, "shared-volumes", "", "`folder` that all nodes see, for claims of the class shared")
	flags.StringVar(&spec.DebugDir, "debug-dir", "", "keep logs and configuration in this `directory`")
	flags.IntVar(&spec.Verbosity, "component-verbosity", 0, "log `level` of the Kubernetes components")
	flags.BoolVarP(&quiet, "quiet", "q", false, "say nothing but errors")
	flags.BoolVarP(&verbose, "verbose", "v", false, "say more")
	return command
}
