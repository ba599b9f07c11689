package cli

import (
	"context"
	"errors"
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
	var quiet, verbose bool
	var use runFlags
	command := &cobra.Command{
		Use:   "run [JOB] [flags] [-f MANIFEST]... [--image ARCHIVE]... [-- COMMAND...]",
		Short: "Start a cluster, run a workload on it, and take it down",
		Long: `Starts a cluster, applies the manifests, follows the logs of the Jobs and bare
Pods in them, and ends with their exit code. With a command, runs that on the
host beside the cluster, with KUBECONFIG set and kubectl and helm in PATH, and
ends with its exit code. The cluster is gone when berth run returns. A pod that
can never start ends the run within 30 s, with code 75 and the reason.

In a job with several nodes it is one cluster over all of them.

Where 'berth up' has started a cluster in the allocation, the workload runs on
that one instead, and what the manifests have applied is deleted at the end.
With JOB it is your cluster in that job, from the login host or from anywhere
else; outside of an allocation, BERTH_JOB names one, too.

On a host that belongs to a Slurm cluster and is in no allocation, a login host
for example, no cluster is started: run ends with code 78 and says how to submit
a job. --here starts one all the same, where the site permits it.

The workload's output goes to standard output and standard error; what berth
itself has to say goes to standard error.`,
		Example: `  berth run -f job.yaml --image app.tar
  berth run -- ./script.sh
  berth run 4711 -f job.yaml
  srun -N3 berth run -f job.yaml`,
		DisableFlagsInUseLine: true, // they come before the command
		Args: func(command *cobra.Command, args []string) (err error) {
			use.job, spec.Command, err = splitRun(use.job, args, command.ArgsLenAtDash())
			return err
		},
		RunE: func(command *cobra.Command, _ []string) error {
			use.given, use.shape = given(command.Flags()), shaping(command.Flags())
			preferred, err := prefer(command.Flags())
			if err != nil {
				return err
			}
			if job := use.target(preferred.Getenv); job != "" {
				return runInJob(command, job, spec, use, preferred.Getenv, quiet, verbose)
			}
			return run(command.Context(), spec, use, preferred, quiet, verbose)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	addSpecFlags(flags, &spec)
	flags.StringVar(&use.job, "job", "", "`job` whose cluster runs the workload, instead of a cluster of its own; the same as JOB")
	addHereFlag(flags, &use.here)
	flags.BoolVar(&use.own, "own-cluster", false, "start a cluster for this run alone, also where 'berth up' has one")
	flags.BoolVar(&use.keep, "keep", false, "leave on the cluster of 'berth up' what the manifests have applied")
	addProgressFlags(flags, &quiet, &verbose)
	return command
}

// runFlags holds the flags of berth run that select the cluster.
type runFlags struct {
	job             string
	own, keep, here bool
	// given are the names of all flags on the command line.
	given []string
	// shape lists the given flags that change the shape of a cluster.
	shape []string
}

// given are the flags on the command line.
func given(flags *pflag.FlagSet) (names []string) {
	flags.Visit(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	return names
}

// shaping lists the given flags that a running cluster cannot apply.
func shaping(flags *pflag.FlagSet) []string {
	return slices.DeleteFunc(given(flags), func(name string) bool {
		return slices.Contains([]string{"file", "image", "job", "here", "own-cluster", "keep", "logs", "no-pull", "quiet", "verbose"}, name)
	})
}

// run does what the spec asks for, and shows how.
func run(ctx context.Context, spec cluster.Spec, use runFlags, preferred *preferences, quiet, verbose bool) error {
	err := withProgress(quiet, verbose, func(progress *progress, reporter *crash.Reporter) (int, error) {
		return launch.Run(ctx, runOptions(spec, use, preferred.Getenv, progress, reporter, preferred.forbidden["here"]))
	})
	return explainOutside(ctx, err, preferred)
}

// withProgress does something that shows its steps, and returns its exit code as an
// error. A panic meanwhile is reported in one sentence.
func withProgress(quiet, verbose bool, do func(*progress, *crash.Reporter) (int, error)) error {
	if quiet && verbose {
		return &usageError{errQuietVerbose}
	}
	progress := newProgress(os.Stderr, quiet, verbose)
	reporter, err := crash.Start(crash.BeforeWorkload())
	if err != nil {
		slog.New(progress).Debug(err.Error()) // a panic prints its stacks then
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
		Getenv: getenv,
		Report: progress.step,
		Log:    slog.New(progress),
		Crash:  reporter,
		Own:    use.own, Keep: use.keep, Here: use.here, HereForbidden: forbidden, Given: use.given, Shape: use.shape,
	}
}

func addHereFlag(flags *pflag.FlagSet, here *bool) {
	flags.BoolVar(here, "here", false, "start a cluster on this host although it belongs to a Slurm cluster and is in no allocation")
}

func addProgressFlags(flags *pflag.FlagSet, quiet, verbose *bool) {
	flags.BoolVarP(quiet, "quiet", "q", false, "say nothing but errors")
	flags.BoolVarP(verbose, "verbose", "v", false, "say more")
}

// addSpecFlags adds the flags of the cluster's Spec, which a run and a batch job
// share.
func addSpecFlags(flags *pflag.FlagSet, spec *cluster.Spec) {
	flags.StringArrayVarP(&spec.Manifests, "file", "f", nil, "`manifest` to apply, or a folder of them; - is standard input; can be repeated")
	flags.StringArrayVar(&spec.Images, "image", nil, "image `archive` (OCI, docker-save or SIF) or folder (OCI layout, or unpacked), or NAME=ARCHIVE; can be repeated")
	flags.StringArrayVar(&spec.Logs, "logs", nil, "`whose` output to follow: KIND/NAME such as job/main, labels such as app=web, or none; can be repeated (default: of Jobs and Pods that end, or of everything where nothing does)")
	flags.BoolVar(&spec.NoPull, "no-pull", false, "pull no image from the network")
	flags.StringArrayVar(&spec.Registries, "registry", nil, "pull the images of a registry from elsewhere, as `NAME=URL`; http:// is allowed; can be repeated")
	flags.StringVar(&spec.Snapshotter, "snapshotter", "", "`how` nodes keep the layers of images: overlayfs (unpacked), erofs (one file each), or auto: erofs where you can mount with FUSE and overlayfs can write to the state directory, else unpacked (default auto)")
	flags.StringVar(&spec.ImageCache, "image-cache", "", "`folder` that all nodes and later runs see, for the layers of images, where these are one file each; off for none (default ~/.cache/berth, if it is on a file system of the network)")
	flags.StringVar(&spec.ImageCacheLimit, "image-cache-limit", "", "`size` that it may take, such as 20G; what was used longest ago goes (default 10G)")
	flags.BoolVar(&spec.LazyPull, "lazy-pull", false, "start containers of eStargz images before these have come, where layers are one file each")
	flags.BoolVar(&spec.OneUID, "one-uid", false, "do without subordinate user ids")
	flags.StringVar(&spec.AddressBlock, "address-block", "", "`range` of addresses for pods, Services and nodes, such as 100.64.0.0/14 (default: one that clashes with no route)")
	flags.StringVar(&spec.Network.IPFamily, "ip-family", "", "`family` of addresses for pods and Services: ipv4, dual (IPv4 and IPv6), or auto: dual where the hosts reach the outside by both (default auto)")
	flags.StringVar(&spec.StateDir, "state-dir", "", "`directory` on a local disk for the run's files (default: chosen)")
	flags.IntVar(&spec.NodesPerHost, "nodes-per-host", 1, "`number` of Kubernetes nodes on each machine, to try things out (default 1)")
	flags.DurationVar(&spec.NodeWait, "node-wait", 0, "`time` for which the nodes of a job wait for each other (default 1m)")
	flags.BoolVar(&spec.HighlyAvailable, "ha", false, "run three control planes, so that the cluster survives the loss of any one node")
	flags.BoolVar(&spec.FailFast, "fail-fast", false, "end the run when a node is lost")
	flags.StringVar(&spec.Network.Ports, "port-range", "", "`ports` to use between nodes (default 21000-28999)")
	flags.StringVar(&spec.Network.Interface, "interface", "", "network interface `name` for the packets of pods between nodes (default: that of the nodes' names)")
	flags.StringVar(&spec.Network.Carrier, "carrier", "", "`how` the packets of pods travel between nodes: udp or tcp (default: udp where it gets through)")
	flags.StringVar(&spec.Network.FastPath, "fast-path", "", "`whether` the hosts make the TCP connections of pods to other nodes and to the outside: auto (where they can) or off (default auto)")
	flags.StringVar(&spec.Network.Folder, "rendezvous-dir", "", "`folder` of yours that all nodes see, for them to know each other by where there is nothing better")
	flags.StringArrayVar(&spec.Network.Refuse, "deny-egress", nil, "`range` of addresses outside that pods may not reach, such as 10.0.0.0/8; can be repeated")
	flags.StringVar(&spec.SharedVolumes, "shared-volumes", "", "`folder` that all nodes see, for claims of the class shared")
	flags.StringArrayVar(&spec.Mounts, "mount", nil, "`folder` of the nodes for every pod, as SRC[:DST][:ro]; can be repeated")
	flags.BoolVar(&spec.ForeignOwners, "foreign-owners", false, "let users of pods other than root write to file systems that machines share")
	flags.StringArrayVar(&spec.Devices, "device", nil, "device `file` or folder of them for pods to request, as [RESOURCE[:SHARES]=]PATH[,PATH]..., such as rdma/hca:16=/dev/infiniband; can be repeated")
	flags.DurationVar(&spec.Grace, "grace", 0, "`time` before the end of the job's at which the workload is asked to end (default: Slurm's KillWait, after it)")
	flags.StringVar(&spec.State, "state", "", "`folder` for the cluster's objects: they are saved there, and come back in the next job, or after a requeue")
	flags.StringVar(&spec.StateSecrets, "state-secrets", "", "`what` becomes of Secrets there: encrypt (by a key in your home directory) or omit (default encrypt)")
	flags.StringArrayVar(&spec.Publish, "publish", nil, "open a `port` of the nodes on their hosts, as [NAME=][ADDRESS:]PORT[:PORT], such as 8080:80; where the site gives each job its own network, NAME.JOB leads there; can be repeated")
	flags.StringVar(&spec.DebugDir, "debug-dir", "", "keep logs and configuration in this `directory`")
	flags.IntVar(&spec.Verbosity, "component-verbosity", 0, "log `level` of the Kubernetes components")
}
