package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/launch"
)

func newWorkloadCommand() *cobra.Command {
	var spec cluster.Spec
	var shown verbosity
	var here bool
	options := pflag.NewFlagSet("", pflag.ContinueOnError)
	addSpecFlags(options, &spec)
	addHereFlag(options, &here)
	command := &cobra.Command{
		Use:   "run-workload [flags] SCRIPT [SHARED_DIR]",
		Short: "Run a script that was written for KSI",
		Long: `Starts a cluster, runs a script beside it as KSI's run-workload.sh does, and
takes the cluster down. 'run-workload.sh', which comes with berth, calls this.

The script is run by bash, once, on the first node. It finds in its environment:

  KUBECONFIG             for kubectl and helm, which are in PATH
  K8S_CLUSTER_NAME       name of the cluster, and of the context of kubectl
  K8S_CLUSTER_API        URL of the API
  K8S_CLUSTER_API_TOKEN  token that may do everything
  K8S_PORT               port for a Service of type NodePort, which is open on
                         this host to anyone who reaches it

Pods find the folder app in SHARED_DIR, or else the working directory, as the
host path /app.

The options of 'berth run' that a settings file can give apply here from files
and from the environment, such as BERTH_IP_FAMILY=dual.`,
		Example: `  srun -N1 /bin/bash run-workload.sh $PWD/workload.sh
  srun -N3 /bin/bash run-workload.sh $PWD/workload.sh /shared/alice
  run-workload.sh --image app.tar workload.sh`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return &usageError{fmt.Errorf("%d arguments: give SCRIPT, and SHARED_DIR where there is one", len(args))}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := launch.CheckScript(args[0]); err != nil {
				return err
			}
			spec.Command = []string{"bash", args[0]}
			spec.KSI = &cluster.KSI{}
			if len(args) > 1 {
				spec.KSI.Shared = args[1]
			}
			preferred, err := prefer(options)
			if err != nil {
				return err
			}
			return run(command, spec, runFlags{here: here}, preferred, shown)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false) // what follows the script is not for berth
	for _, name := range []string{"image", "here", "debug-dir"} {
		flags.AddFlag(options.Lookup(name))
	}
	shown.addFlags(flags)
	return command
}
