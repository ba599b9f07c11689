package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/launch"
	"berth.dev/berth/internal/launch/crash"
)

func newRunCommand() *cobra.Command {
	var spec cluster.Spec
	var shown verbosity
	var use runFlags
	command := &cobra.Command{
		Use:   "run [JOB] [flags] [-f MANIFEST]... [--image ARCHIVE]... [-- COMMAND...]",
		Short: "Start a cluster, run a workload on it, and take it down",
		Long: `Starts a cluster, applies the manifests, follows the logs of the Jobs and bare
Pods in them, and ends with their exit code. With a command, runs that on the
host beside the cluster, with KUBECONFIG set and kubectl and helm in PATH, and
ends with its exit code. The cluster is gone when berth run returns. A pod that
can never start ends the run, usually within 30 s, with code 75 and the reason.
A pod has your programs' power over the host's network, unless --fast-path off.

In a job with several nodes, one cluster spans all of them.

If 'berth up' has started a cluster in the allocation, the workload runs on that
one instead, and the objects that the manifests created are deleted at the end.
With JOB, it runs on your cluster in that job, from the login host or any other
host. Outside an allocation, BERTH_JOB can name the job, too.

With --kubeconfig, berth starts no cluster: the workload runs in one namespace of
an existing one. Everything that the manifests created is deleted at the end, also
if berth is killed.

On a host that belongs to a Slurm cluster but is not in an allocation, such as a
login host, no cluster is started: run ends with code 78 and prints how to submit
a job. --here starts one anyway, if the site permits it.

The workload's output goes to standard output and standard error; berth's own
messages go to standard error.`,
		Example: `  berth run -f job.yaml --image app.tar
  berth run -- ./script.sh
  berth run 4711 -f job.yaml
  srun -N3 berth run -f job.yaml`,
		DisableFlagsInUseLine: true, // they come before the command
		Args: func(command *cobra.Command, args []string) (err error) {
			use.job, spec.Command, err = splitRun(args, command.ArgsLenAtDash())
			return err
		},
		RunE: func(command *cobra.Command, _ []string) error {
			use.given, use.shape = given(command.Flags()), shaping(command.Flags())
			preferred, err := prefer(command.Flags())
			if err != nil {
				return err
			}
			if err := use.existing.absolute(use.given); err != nil {
				return err
			}
			if use.existing.Kubeconfig != "" && use.job != "" {
				return &usageError{fmt.Errorf("run on the cluster of job %s or on that of %s: give either JOB or --kubeconfig", use.job, use.existing.Kubeconfig)}
			}
			if job := use.target(preferred.Getenv); job != "" && use.existing.Kubeconfig == "" {
				return runInJob(command, job, spec, use, preferred.Getenv, shown)
			}
			return run(command, spec, use, preferred, shown)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	addSpecFlags(flags, &spec)
	addHereFlag(flags, &use.here)
	flags.BoolVar(&use.own, "own-cluster", false, "start a cluster only for this run, even if 'berth up' has one")
	flags.BoolVar(&use.keep, "keep", false, "do not delete what the manifests applied to the cluster of 'berth up'")
	use.existing.addFlags(flags)
	shown.addFlags(flags)
	return command
}

// runFlags holds the flags of berth run that select the cluster.
type runFlags struct {
	job             string
	own, keep, here bool
	existing        existingFlags
	// given lists the names of all flags on the command line.
	given []string
	// shape lists the given flags that change the shape of a cluster.
	shape []string
}

// given returns the flags on the command line.
func given(flags *pflag.FlagSet) (names []string) {
	flags.Visit(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	return names
}

// shaping lists the given flags that a running cluster cannot apply.
func shaping(flags *pflag.FlagSet) []string {
	return slices.DeleteFunc(given(flags), func(name string) bool {
		return slices.Contains([]string{"file", "image", "here", "own-cluster", "keep", "logs", "no-pull", "quiet", "verbose"}, name)
	})
}

// run runs the workload of the spec and shows the steps.
func run(command *cobra.Command, spec cluster.Spec, use runFlags, preferred *preferences, shown verbosity) error {
	ctx := command.Context()
	err := withProgress(command.ErrOrStderr(), shown, func(progress *progress, reporter *crash.Reporter) (int, error) {
		return launch.Run(ctx, runOptions(spec, use, preferred.Getenv, progress, reporter, preferred.forbidden["here"]))
	})
	return explainOutside(ctx, err, preferred)
}

// withProgress calls do, shows its steps, and returns its exit code as an error. A panic
// is reported in one sentence.
func withProgress(to io.Writer, shown verbosity, do func(*progress, *crash.Reporter) (int, error)) error {
	if err := shown.check(); err != nil {
		return err
	}
	progress := newProgress(to, shown)
	var reporter *crash.Reporter
	program, err := launch.SandboxProgram()
	if err == nil {
		reporter, err = crash.Start(program, crash.BeforeWorkload())
	}
	if err != nil {
		slog.New(progress).Warn(err.Error() + "; a crash of berth would print its stacks, and nothing else")
	}
	code, err := do(progress, reporter)
	progress.end()
	err = errors.Join(err, reporter.Close())
	if err == nil && code != 0 {
		err = &result{code}
	}
	return err
}

func runOptions(spec cluster.Spec, use runFlags, getenv func(string) string, progress *progress, reporter *crash.Reporter, forbidden string) launch.Options {
	if len(spec.Manifests) == 0 {
		progress.omit("workload")
	}
	return launch.Options{
		Spec:  spec,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv:   getenv,
		Report:   progress.step,
		Log:      slog.New(progress),
		Crash:    reporter,
		Existing: launch.Existing(use.existing),
		Own:      use.own, Keep: use.keep, Here: use.here, HereForbidden: forbidden, Given: use.given, Shape: use.shape,
	}
}

func addHereFlag(flags *pflag.FlagSet, here *bool) {
	flags.BoolVar(here, "here", false, "start a cluster on this host even if it belongs to a Slurm cluster and is not in an allocation")
}

// addSpecFlags adds the flags of the cluster's Spec, which a run and a batch job
// share.
func addSpecFlags(flags *pflag.FlagSet, spec *cluster.Spec) {
	flags.StringArrayVarP(&spec.Manifests, "file", "f", nil, "`manifest` to apply, or a folder of manifests; - reads standard input; can be repeated")
	flags.StringArrayVar(&spec.Images, "image", nil, "image `archive` (OCI, docker save or SIF) or folder (OCI layout or unpacked), or NAME=ARCHIVE; can be repeated")
	flags.StringArrayVar(&spec.Logs, "logs", nil, "`objects` whose output to follow: KIND/NAME such as job/main, labels such as app=web, or none; can be repeated (default: Jobs and Pods that end, or everything if nothing ends)")
	flags.BoolVar(&spec.NoPull, "no-pull", false, "do not pull images from the network")
	flags.StringArrayVar(&spec.Registries, "registry", nil, "pull the images of a registry from another address, as `NAME=URL`; http:// is allowed; can be repeated")
	flags.StringVar(&spec.Snapshotter, "snapshotter", "", "`how` nodes store image layers: overlayfs (unpacked), erofs (one file per layer), or auto: erofs if you can mount with FUSE and overlayfs can write to the state directory, otherwise unpacked (default auto)")
	flags.StringVar(&spec.ImageCache, "image-cache", "", "shared `folder` that caches image layers for all nodes and later runs (erofs only), or off (default ~/.cache/berth, if it is on a network file system)")
	flags.StringVar(&spec.ImageCacheLimit, "image-cache-limit", "", "`size` limit of the image cache, such as 20G; least recently used layers are removed first (default 10G)")
	flags.IntVar(&spec.ImageBudget, "image-budget", 1, "multiply the limits on what an image may contain by a `number`, for images that you trust (default 1)")
	flags.BoolVar(&spec.LazyPull, "lazy-pull", false, "start containers of eStargz images before the download is complete (erofs only)")
	flags.BoolVar(&spec.OneUID, "one-uid", false, "use only your own user ID, no subordinate ones")
	flags.StringVar(&spec.AddressBlock, "address-block", "", "address `range` for pods, Services and nodes, such as 100.64.0.0/14 (default: one that conflicts with no route)")
	flags.StringVar(&spec.Network.IPFamily, "ip-family", "", "address `family` of pods and Services: ipv4, dual (IPv4 and IPv6), or auto: dual if the hosts reach the outside over both (default auto)")
	flags.StringVar(&spec.StateDir, "state-dir", "", "`directory` on a local disk for the run's files (default: chosen by berth)")
	flags.IntVar(&spec.NodesPerHost, "nodes-per-host", 1, "`number` of Kubernetes nodes on each machine, for experiments (default 1)")
	flags.IntVar(&spec.PodsPerNode, "pods-per-node", 0, "`number` of pods that each node runs at most, 5 to 250 (default 250; 125 with more than 512 nodes)")
	flags.DurationVar(&spec.NodeWait, "node-wait", 0, "how long the nodes of a job wait for each other, as a `time` such as 90s (default 1m)")
	flags.BoolVar(&spec.HighlyAvailable, "ha", false, "run three control planes, so that the cluster survives the loss of any one node")
	flags.BoolVar(&spec.FailFast, "fail-fast", false, "end the run when a node is lost")
	flags.StringVar(&spec.Network.Ports, "port-range", "", "`ports` to use between nodes (default 21000-28999)")
	flags.StringVar(&spec.Network.Interface, "interface", "", "`name` of the network interface for pod traffic between nodes (default: the one that the nodes' names resolve to)")
	flags.StringVar(&spec.Network.Carrier, "carrier", "", "`protocol` that carries pod traffic between nodes: udp or tcp (default: udp if it gets through)")
	flags.StringVar(&spec.Network.FastPath, "fast-path", "", "`mode` of the fast path, which lets the hosts make the TCP connections of pods to other nodes and to the outside, and gives pods the power over the hosts' network that your own programs have: auto (if they can) or off (default auto)")
	flags.StringVar(&spec.Network.Folder, "rendezvous-dir", "", "shared `folder` for the nodes' keys, if munge and PMI are unavailable")
	flags.StringArrayVar(&spec.Network.Refuse, "deny-egress", nil, "`range` of outside addresses that pods may not reach, such as 10.0.0.0/8; can be repeated")
	flags.BoolVar(&spec.SlurmJobs, "slurm-jobs", false, "make Slurm jobs of BridgeJobs, SlurmJobs and WlmJobs in the cluster, as 'berth slurm-jobs' does elsewhere")
	flags.StringVar(&spec.ResultsImage, "results-image", "", "`image` of pods that collect results; has tar")
	flags.StringSliceVar(&spec.S3Endpoints, "s3-endpoint", nil, "`URL` of an S3 store for BridgeJobs; repeatable")
	flags.StringVar(&spec.SharedVolumes, "shared-volumes", "", "shared `folder` for volume claims of the class shared")
	flags.StringArrayVar(&spec.Mounts, "mount", nil, "host `folder` to mount in every pod, as SRC[:DST][:ro]; can be repeated")
	flags.BoolVar(&spec.ForeignOwners, "foreign-owners", false, "let non-root users in pods write to file systems that machines share")
	flags.StringArrayVar(&spec.Devices, "device", nil, "device `file`, or folder of devices, that pods can request, as [RESOURCE[:SHARES]=]PATH[,PATH]..., such as rdma/hca:16=/dev/infiniband; can be repeated")
	flags.DurationVar(&spec.Grace, "grace", 0, "ask the workload to end this `time` before the time limit of the job or its step (default: at the limit, with Slurm's KillWait left)")
	flags.StringVar(&spec.State, "state", "", "`folder` to save the cluster's objects in; the next job, or the job after a requeue, restores them")
	flags.StringVar(&spec.StateSecrets, "state-secrets", "", "`how` to save Secrets: encrypt (with a key in your home directory) or omit (default encrypt)")
	flags.StringArrayVar(&spec.Publish, "publish", nil, "open a `port` of the nodes on their hosts, as [NAME=][ADDRESS:]PORT[:PORT], such as 8080:80; if the site gives each job its own network, NAME.JOB resolves to it; can be repeated")
	flags.StringVar(&spec.DebugDir, "debug-dir", "", "keep logs and configuration in this `directory`")
}
