package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/slurmjobs/process"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// slurmJobsFlags holds options that 'berth slurm-jobs' and its subcommands share.
type slurmJobsFlags struct {
	kubeconfig, namespace string
	trustNamespace        bool
	users                 []string
}

// addCluster adds the flags that name the cluster and the namespace.
func (f *slurmJobsFlags) addCluster(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that names the cluster (default: as kubectl)")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "`namespace` of the objects")
}

// addTrust adds the flags that say whose objects become jobs.
func (f *slurmJobsFlags) addTrust(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.users, "allow-users", nil, "admit only objects of these `users` of the cluster")
	flags.BoolVar(&f.trustNamespace, "trust-namespace", false, "trust everybody who may create objects there")
}

var errTrust = errors.New("nobody is trusted yet to run code as you: give --allow-users NAME,... for named users of the cluster, or --trust-namespace for everybody who may create objects in the namespace")

// check returns a usage error unless there is a namespace, and one way to trust users.
func (f *slurmJobsFlags) check() error {
	for i, user := range f.users {
		if f.users[i] = strings.TrimSpace(user); f.users[i] == "" {
			return &usageError{errors.New("--allow-users names an empty user: give names with commas between them")}
		}
	}
	switch {
	case f.namespace == "":
		return &usageError{errors.New("--namespace is missing: name the namespace of the objects")}
	case f.trustNamespace == (len(f.users) > 0):
		return &usageError{errTrust}
	}
	return nil
}

func newSlurmJobsCommand() *cobra.Command {
	var f slurmJobsFlags
	var o process.Options
	var logs process.LogListen
	var shown verbosity
	command := &cobra.Command{
		Use:   "slurm-jobs [flags]",
		Short: "Run Slurm jobs for objects in an existing Kubernetes",
		Long: `Submits a Slurm job for each BridgeJob, SlurmJob and WlmJob in a namespace, as
you, and writes the job's state into the object's status. Bridge Operator and
WLM-Operator defined these kinds. Run it on a login host; jobs go on without it.

Whoever can create such an object runs code as you. So either a policy in the
cluster admits only objects of --allow-users, or you trust the namespace. The
cluster's administrator installs what is needed, see 'berth slurm-jobs setup'.`,
		Example:               `  berth slurm-jobs --kubeconfig ~/k8s.conf -n lab --allow-users alice`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
	}
	flags := command.Flags()
	f.addCluster(flags)
	f.addTrust(flags)
	flags.StringSliceVar(&o.URLs, "resource-url", nil, "`URL` of this Slurm in resourceURL; repeatable")
	flags.StringSliceVar(&o.Roots, "root", nil, "`folder` for jobs' files; repeatable (default: home)")
	flags.StringVar(&o.State, "state-dir", "", "`folder` for records of jobs, shared with compute nodes (default ~/.local/state/berth/slurm-jobs)")
	flags.StringVar(&o.Results.Image, "results-image", "", "`image` of pods that collect results; has tar")
	flags.StringSliceVar(&o.Results.Roots, "results-root", nil, "`folder` for results (default: your home)")
	flags.StringSliceVar(&o.Results.Volumes, "results-volume", []string{"persistentVolumeClaim"}, "`type` of volume for results; repeatable")
	flags.StringSliceVar(&o.S3.Endpoints, "s3-endpoint", nil, "`URL` of an S3 store for BridgeJobs; repeatable")
	flags.StringVar(&o.NodesName, "partition-nodes", "", "show partitions as Nodes slurm-`NAME`-PARTITION, and jobs as pods")
	flags.StringVar(&logs.Address, "logs-address", "", "serve the pods' logs at this `address` of the host, with a port (default: a free one)")
	flags.StringVar(&logs.Certificate, "logs-cert", "", "PEM `file` with the certificate and key of that server (default: self-signed)")
	flags.StringVar(&logs.Client, "logs-client", process.KubeadmClient, "common `name` of the API server's client certificate for kubelets")
	flags.IntVar(&o.PerMinute, "submit-rate", 120, "maximum number of submissions per minute")
	shown.addFlags(flags)
	command.RunE = func(command *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if o.PerMinute < 1 {
			return &usageError{errors.New("--submit-rate: give a whole number, 1 or more")}
		}
		o.PartitionNodes = o.NodesName != ""
		if logs.Address != "" {
			if !o.PartitionNodes {
				return &usageError{errors.New("--logs-address serves the logs of pods on the Nodes of partitions: give --partition-nodes, too")}
			}
			if err := logs.Check(); err != nil {
				return &usageError{err}
			}
		}
		o.S3.Region = os.Getenv("AWS_REGION")
		if err := errors.Join(o.Results.Check(), o.S3.Check()); err != nil {
			return &usageError{err}
		}
		if err := shown.check(); err != nil {
			return err
		}
		home, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		if len(o.Roots) == 0 {
			o.Roots = []string{home}
		}
		if len(o.Results.Roots) == 0 {
			o.Results.Roots = []string{home}
		}
		for i, root := range o.Results.Roots {
			if o.Results.Roots[i], err = filepath.Abs(root); err != nil {
				return err
			}
		}
		if o.State == "" {
			o.State = process.StateFolder(os.Getenv, home)
		}
		for i, root := range o.Roots {
			if o.Roots[i], err = filepath.Abs(root); err != nil {
				return err
			}
		}
		if o.State, err = filepath.Abs(o.State); err != nil {
			return err
		}
		if o.Config, _, err = process.Connect(f.kubeconfig); err != nil {
			return exitcode.Wrap(exitcode.NoInput, err)
		}
		if o.Berth, err = remoteProgram(os.Getenv); err != nil {
			return err
		}
		if logs.Address != "" {
			if o.PodLogs, err = logs.Listen(command.Context(), o.Config); err != nil {
				return err
			}
		}
		o.Namespace, o.Users = f.namespace, f.users
		o.Log = slog.New(newLines(command.ErrOrStderr(), shown))
		return process.Run(command.Context(), o)
	}
	const group = "slurm-jobs"
	command.AddGroup(&cobra.Group{ID: group, Title: "Commands"})
	for _, child := range []*cobra.Command{newSlurmJobsSetupCommand(), newSlurmJobsLogsCommand(), newSlurmJobsRemoveCommand()} {
		child.GroupID = group
		command.AddCommand(child)
	}
	return command
}

func newSlurmJobsSetupCommand() *cobra.Command {
	var f slurmJobsFlags
	var user string
	var results, nodes bool
	var secrets []string
	command := &cobra.Command{
		Use:   "setup --namespace NAMESPACE --user USER (--allow-users USERS | --trust-namespace)",
		Short: "Print what a cluster's administrator has to apply",
		Long: `Prints the definitions of the kinds, the roles of the controller and of its
users, and with --allow-users the policy that refuses objects of others, as
YAML. --user is the name of the controller's user in the cluster: 'kubectl auth
whoami' with the controller's kubeconfig prints it.`,
		Example:               `  berth slurm-jobs setup -n lab --user carol --allow-users alice,bob | kubectl apply -f -`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.namespace, "namespace", "n", "", "`namespace` of the objects")
	flags.StringVar(&user, "user", "", "`name` of the controller's user in the cluster")
	f.addTrust(flags)
	flags.BoolVar(&results, "results", false, "include the rights to create pods that collect results (--results-image)")
	flags.BoolVar(&nodes, "partition-nodes", false, "include rights over Nodes of the whole cluster, to show partitions and jobs (--partition-nodes); each namespace needs its own --user")
	flags.StringSliceVar(&secrets, "s3-secret", nil, "include the right to read the Secret with this `name`, for S3 stores (--s3-endpoint)")
	command.RunE = func(command *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if user == "" {
			return &usageError{errors.New("--user is missing: name the cluster's user that 'berth slurm-jobs' runs as; 'kubectl auth whoami' prints it")}
		}
		text, err := trust.Trust{Namespace: f.namespace, Users: f.users, Controller: user, Results: results, Secrets: secrets, PartitionNodes: nodes}.Setup()
		if err == nil {
			_, err = fmt.Fprint(command.OutOrStdout(), text)
		}
		if err == nil && len(f.users) > 0 {
			fmt.Fprintf(command.ErrOrStderr(), "berth: create objects %.0f seconds after this was applied: earlier ones are refused\n", trust.Settle.Seconds())
		}
		return err
	}
	return command
}

func newSlurmJobsLogsCommand() *cobra.Command {
	var f slurmJobsFlags
	var follow bool
	command := &cobra.Command{
		Use:   "logs [flags] OBJECT",
		Short: "Print the output of an object's job",
		Long: `Prints the standard output of the job of an object, such as cow or
bridgejob/train. The output is a file on the hosts of the Slurm cluster, so run
this command on one of them. With -f it follows the file until the job has
ended.`,
		Example:               `  berth slurm-jobs logs -n lab -f cow`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{errors.New("name one object, such as cow or bridgejob/train")}
			}
			return nil
		},
	}
	f.addCluster(command.Flags())
	command.Flags().BoolVarP(&follow, "follow", "f", false, "follow the output until the job has ended")
	command.RunE = func(command *cobra.Command, args []string) error {
		config, namespace, err := process.Connect(f.kubeconfig)
		if err != nil {
			return exitcode.Wrap(exitcode.NoInput, err)
		}
		if f.namespace != "" {
			namespace = f.namespace
		}
		return process.Logs(command.Context(), config, namespace, args[0], follow, command.OutOrStdout())
	}
	return command
}

func newSlurmJobsRemoveCommand() *cobra.Command {
	var f slurmJobsFlags
	command := &cobra.Command{
		Use:   "remove --namespace NAMESPACE [flags] [OBJECT...]",
		Short: "Remove finalizers when the controller never returns",
		Long: `A deleted object waits until its controller has cancelled its job. If the
controller never returns, this command removes its finalizer from the named
objects, or from all objects of a namespace. It cancels no job: it prints the
numbers of jobs that may still exist, for scancel. It refuses while a controller
serves the namespace.`,
		DisableFlagsInUseLine: true,
	}
	f.addCluster(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error {
		if f.namespace == "" {
			return &usageError{errors.New("--namespace is missing: name the namespace of the objects")}
		}
		config, _, err := process.Connect(f.kubeconfig)
		if err != nil {
			return exitcode.Wrap(exitcode.NoInput, err)
		}
		return process.Remove(command.Context(), config, f.namespace, args, func(object, job string) {
			fmt.Fprintf(command.OutOrStdout(), "%s: scancel %s\n", object, job)
		})
	}
	return command
}
