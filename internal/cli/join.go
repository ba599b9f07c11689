package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth.dev/berth/internal/base/cluster"
)

func newJoinCommand() *cobra.Command {
	// The other options come from the cluster.
	spec := cluster.Spec{NodesPerHost: 1, ImageBudget: 1}
	var shown verbosity
	command := &cobra.Command{
		Use:   "join [flags] JOB",
		Short: "Make this job's nodes a part of the cluster in another job",
		Long: `Makes each node of this job a node of the cluster that 'berth up --elastic' has
started in JOB, another job of yours, and returns when the node has left. The
nodes have the options of the cluster.

A node leaves when its job ends, or --grace before the time limit of the job: it
gets no new pods, its pods are asked to end, and their controllers start others
on the remaining nodes. All nodes leave when the cluster ends.`,
		Example: `  berth up --elastic          # in job 4711
  sbatch --wrap 'exec berth join 4711'
  sbatch -N4 --time=1:00:00 --wrap 'exec berth join 4711 --grace 2m'`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("no job: give the number of the job whose cluster to join")}
			}
			return atMostAJob(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			preferred, err := prefer(command.Flags())
			if err != nil {
				return err
			}
			spec.Join, _, _ = strings.Cut(args[0], ".")
			if problems := validation.IsValidLabelValue(spec.For); len(problems) > 0 {
				return &usageError{fmt.Errorf("--for %q: %s", spec.For, problems[0])}
			}
			return run(command, spec, runFlags{given: given(command.Flags())}, preferred, shown)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.DurationVar(&spec.Grace, "grace", 0, "leave this `time` before the time limit of the job or its step (default: at the limit, with Slurm's KillWait left)")
	flags.StringVar(&spec.For, "for", "", "run only pods whose node selector has `name` as slurm.berth.dev/for, and that tolerate the taint of that name")
	flags.DurationVar(&spec.NodeWait, "node-wait", 0, "how long to wait for the cluster, as a `time` such as 90s (default 1m)")
	flags.DurationVar(&spec.HeadWait, "head-wait", 10*time.Minute, "how long the nodes wait for the cluster when its job is requeued (with 'berth up --state'), as a `time` such as 5m")
	flags.StringVar(&spec.StateDir, "state-dir", "", "`directory` on a local disk for the node's files (default: chosen by berth)")
	flags.StringVar(&spec.Network.Interface, "interface", "", "`name` of the network interface for pod traffic between nodes (default: the one that reaches the cluster)")
	flags.StringVar(&spec.Network.Ports, "port-range", "", "`ports` to use between nodes, the same as for the cluster (default 21000-28999)")
	flags.StringVar(&spec.Network.Folder, "rendezvous-dir", "", "shared `folder` with the cluster's key, if munge is unavailable; give it to 'berth up', too")
	flags.StringVar(&spec.DebugDir, "debug-dir", "", "keep logs and configuration in this `directory`")
	shown.addFlags(flags)
	return command
}

// addElasticFlags adds the flags for nodes of other jobs.
func addElasticFlags(flags *pflag.FlagSet, spec *cluster.Spec) {
	flags.IntVar(&spec.Seats, "elastic", 0, "for pods that do not fit, submit jobs whose nodes join the cluster, at most this `number` of nodes (64 if you give none); 'berth join' adds nodes by hand")
	flags.Lookup("elastic").NoOptDefVal = strconv.Itoa(cluster.DefaultSeats)
	flags.DurationVar(&spec.Idle, "elastic-idle", 0, "end the job of such a node after this `time` without pods (default 1m)")
}
