// Package process runs the controller of Slurm jobs: it connects a controller to a Kubernetes
// cluster and to Slurm, with the users who are trusted. The process runs on a login host for
// 'berth slurm-jobs', or on the first node's host of a cluster that berth starts. The package
// also reads scripts from files, and decides which Slurm a resourceURL names.
package process

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/base/heap"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/results"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// Options configures the process.
type Options struct {
	Config *rest.Config
	// Namespace holds the objects. Empty means all namespaces.
	Namespace string
	// Users lists the Kubernetes users whose objects become jobs, as in trust.Trust. If it
	// is empty, everybody who may create objects is trusted.
	Users []string
	// URLs lists values of resourceURL that name this Slurm, besides URLs of this host and
	// of the Slurm cluster's name.
	URLs []string
	// Roots lists the folders that may hold the working directories and files of jobs. The
	// first is the default working directory, and relative paths begin there.
	Roots []string
	// State is the folder for records of jobs. It must be on a file system that compute
	// nodes share.
	State string
	// Berth is the path of the program berth on compute nodes.
	Berth string
	// PerMinute limits the submissions per minute. Zero means no limit.
	PerMinute int
	// PartitionNodes shows each partition as a Node, and each job as a pod. The user of Config
	// must have the rights. NodesName is a part of the names of the Nodes. It defaults
	// to this host's name. PodLogs serves the logs of the pods. It may be nil.
	PartitionNodes bool
	NodesName      string
	PodLogs        *PodLogs
	Results        Results
	S3             S3
	Log            *slog.Logger
}

// Limits of requests to the API server: requests per second, and requests in a burst.
const (
	requestRate  = 50
	requestBurst = 100
)

// Connect reads a kubeconfig, and returns the client configuration and the namespace of its
// context. If path is empty, it reads the kubeconfig that kubectl would use.
func Connect(path string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent = requestRate, requestBurst, "berth-slurm-jobs"
	config.WarningHandler = rest.NoWarnings{}
	namespace, _, err := loaded.Namespace()
	return config, namespace, err
}

// StateFolder returns the default folder for records of jobs.
func StateFolder(getenv func(string) string, home string) string {
	return queue.StateFolder(getenv, home, "slurm-jobs")
}

// settleTime is the time after which the process drops the memory that only its start needed.
const settleTime = 20 * time.Second

// Run serves objects until ctx ends. Then it returns nil. It returns an error if the cluster lacks
// the definitions or the policy.
func Run(ctx context.Context, o Options) error {
	client, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if _, err := exec.LookPath("sbatch"); err != nil {
		return fmt.Errorf("%w: start 'berth slurm-jobs' on a host with Slurm's commands", err)
	}
	options := controller.Default()
	options.Config, options.Namespace, options.Log = o.Config, o.Namespace, o.Log
	if options.LeaseNamespace = o.Namespace; o.Namespace == "" {
		options.LeaseNamespace = "default"
	}
	if len(o.Users) > 0 {
		self, err := trust.Self(ctx, client)
		if err != nil {
			return err
		}
		trusted := trust.Trust{Namespace: o.Namespace, Users: o.Users, Controller: self}
		if _, err := trusted.Check(ctx, client); err != nil {
			return err
		}
		options.Allow = trusted.Allow(client)
	}
	queueOptions := queue.Default(o.State, o.Log)
	queueOptions.PerMinute = o.PerMinute
	jobs, err := queue.New(queueOptions)
	if err != nil {
		return err
	}
	options.Slurm, options.Forget = jobs, jobs.Forget
	if options.Identity, err = identity(); err != nil {
		return err
	}
	names := slurmNames{urls: o.URLs}
	// If Slurm does not answer, a resourceURL can still name this host.
	if config, err := slurm.ReadConfig(ctx, slurm.AskSlurm); err == nil {
		names.hosts = append(names.hosts, config.Get("ClusterName"))
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	short, _, _ := strings.Cut(host, ".")
	names.hosts = append(names.hosts, host, short, "localhost")
	storage, err := o.S3.newStorage(client)
	if err != nil {
		return err
	}
	preparer := preparer{
		names: names, roots: o.Roots, state: o.State, berth: o.Berth, image: o.Results.Image, volumes: o.Results.Volumes,
		storage: storage,
	}
	options.Prepare = preparer.prepare
	collector := collector{preparer: preparer, Collector: results.Default(o.Config, o.Results.Image), roots: o.Results.Roots, find: jobs.Find, turn: uploadTurn, log: o.Log}
	options.Fetch, options.Collect = collector.fetch, collector.collect
	shown, err := o.show(ctx, &options, cmp.Or(o.NodesName, short), os.Environ())
	if err != nil {
		return err
	}
	c, err := controller.New(options)
	if err != nil {
		return err
	}
	shown.connect(c)
	go heap.Settle(ctx, settleTime)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error { return shown.serve(ctx) })
	return group.Wait()
}

// definePoll is the time between two checks whether the API server serves new definitions.
const definePoll = 100 * time.Millisecond

// Define applies the definitions of the kinds, and returns when the API server serves them. The
// configuration needs the rights of an administrator.
func Define(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := controller.Install(ctx, client); err != nil {
		return err
	}
	for {
		err := controller.CheckDefinitions(ctx, client, "")
		if !errors.Is(err, controller.ErrUndefined) {
			return err
		}
		select {
		case <-time.After(definePoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// identity returns a unique name of this process for the lease. It contains the user and the host,
// for people.
func identity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	name := fmt.Sprint(os.Getuid())
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s@%s-%d-%s", name, host, os.Getpid(), hex.EncodeToString(random)), nil
}
