// Package process puts the controller of Slurm jobs together: the queue of Slurm, the
// connection to a cluster, and who is trusted there. It runs on a login host, as the user's
// process, or beside a cluster of berth. It decides where scripts come from and which
// Slurm an object means.
package process

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/slurmjobs/controller"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// Options configures the process.
type Options struct {
	Config *rest.Config
	// Namespace holds the objects. Empty means all namespaces.
	Namespace string
	// Users may create objects. Without users, everybody who can is trusted.
	Users []string
	// URLs are values of resourceURL that name this Slurm, besides the host's and the
	// cluster's name.
	URLs []string
	// Roots are the folders for the working directories and output files of jobs. The
	// first is the default working directory.
	Roots []string
	// State is the folder for records of jobs. Compute nodes must see it.
	State string
	// PerMinute limits submissions.
	PerMinute int
	Log       *slog.Logger
}

// Clients may make this many requests of the API server in a second, and at once.
const (
	requestRate  = 50
	requestBurst = 100
)

// Connect reads a kubeconfig, or the one that kubectl would use if path is empty. It
// returns the namespace of its context, too.
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
	state := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		state = filepath.Join(home, ".local/state")
	}
	return filepath.Join(state, "berth/slurm-jobs")
}

// Run serves objects until ctx ends, and returns nil then.
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
	settings := queue.Default(o.State, o.Log)
	settings.PerMinute = o.PerMinute
	jobs, err := queue.New(settings)
	if err != nil {
		return err
	}
	options.Slurm, options.Forget = jobs, jobs.Forget
	if options.Identity, err = identity(); err != nil {
		return err
	}
	here := here{urls: o.URLs}
	// Without an answer of Slurm, an object can still name this host.
	if config, err := slurm.ReadConfig(ctx, slurm.AskSlurm); err == nil {
		here.names = append(here.names, config.Get("ClusterName"))
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	short, _, _ := strings.Cut(host, ".")
	here.names = append(here.names, host, short, "localhost")
	options.Prepare = maker{here: here, roots: o.Roots, state: o.State}.prepare
	c, err := controller.New(options)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// definePoll is the time between two looks whether a cluster serves new definitions.
const definePoll = 100 * time.Millisecond

// Define defines the kinds in a cluster whose administrator the user is, and returns when
// the cluster serves them.
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

// identity names this process in the lease, with names that help a reader.
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
