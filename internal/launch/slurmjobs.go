package launch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"

	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/node/sandbox"
	"berth.dev/berth/internal/slurmjobs/process"
)

// SlurmJobsArg starts this program again as the role that makes Slurm jobs of objects.
// main calls SlurmJobsRole then.
const SlurmJobsArg = "slurm-jobs-role"

// slurmJobsConfig is the configuration of the role.
type slurmJobsConfig struct {
	Kubeconfig []byte
	// Home is the user's home, and Dir the working directory of the run.
	Home, Dir string
	// ResultsImage is the image of pods that collect results.
	ResultsImage string
	// S3Endpoints holds the URLs of S3 stores that objects may name.
	S3Endpoints []string
	// LogAddress is the node's address in the cluster. The API server asks there for the logs
	// of pods that show jobs. LogServer is the certificate for it.
	LogAddress netip.Addr
	LogServer  pki.Pair
}

// fdLogs names the listener for requests of logs, which is in the sandbox's network.
const fdLogs = "logs"

// checkSlurmJobs returns an error if this host cannot serve Slurm jobs.
func checkSlurmJobs(spec cluster.Spec) error {
	if !spec.SlurmJobs {
		return nil
	}
	if err := (process.S3{Endpoints: spec.S3Endpoints}).Check(); err != nil {
		return exitcode.Wrap(exitcode.Usage, err)
	}
	if _, err := exec.LookPath("sbatch"); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("--slurm-jobs: %w; it needs Slurm's commands on this host", err))
	}
	return nil
}

// defineSlurmJobs defines the kinds of Slurm jobs in the cluster, and starts the role that
// serves them.
func (r *run) defineSlurmJobs(ctx context.Context) error {
	if !r.Spec.SlurmJobs {
		return nil
	}
	client, err := clientcmd.RESTConfigFromKubeConfig(r.identities.Kubeconfig)
	if err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	if err := process.Define(ctx, client); err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	return r.serveSlurmJobs()
}

// serveSlurmJobs starts the role that serves Slurm jobs, if the run has it. The role runs in
// the namespaces of the host, because it calls Slurm's commands.
func (r *run) serveSlurmJobs() error {
	if !r.Spec.SlurmJobs {
		return nil
	}
	secret := func(ending string) []byte {
		return r.identities.Nodes[0][r.plan.Paths.PKI(cluster.JobLogs+ending)].Content
	}
	config := slurmJobsConfig{
		Kubeconfig: r.identities.Kubeconfig, ResultsImage: r.Spec.ResultsImage, S3Endpoints: r.Spec.S3Endpoints,
		LogAddress: r.plan.Addresses.Node, LogServer: pki.Pair{Cert: secret(".crt"), Key: secret(".key")},
	}
	var err error
	if config.Home, err = os.UserHomeDir(); err != nil {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("--slurm-jobs: %w", err))
	}
	if config.Dir, err = os.Getwd(); err != nil {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("--slurm-jobs: %w", err))
	}
	return r.addRoles(slurmJobsRole(r.supervisor, config, r.box.Outside))
}

// slurmJobsRole returns the role. It ends with this process.
func slurmJobsRole(s *supervisor.Supervisor, config slurmJobsConfig, logs *os.File) *supervisor.Role {
	role, _ := ownRole(s, "slurm-jobs", SlurmJobsArg, config, map[string]*os.File{fdLogs: logs})
	return role
}

// SlurmJobsRole runs the role. It returns the exit status after an error; otherwise the supervisor
// ends the process.
func SlurmJobsRole() int {
	sandbox.OutliveSignals()
	fmt.Fprintln(os.Stderr, serveSlurmJobs())
	return 1
}

// serveSlurmJobs serves objects until an error, which it returns.
func serveSlurmJobs() error {
	var config slurmJobsConfig
	files, err := linux.ReceiveFiles(&config, fdLife, fdLogs)
	if err != nil {
		return fmt.Errorf("read what to serve: %w", err)
	}
	go func() {
		_, _ = files[fdLife].Read(make([]byte, 1))
		os.Exit(1)
	}()
	client, err := clientcmd.RESTConfigFromKubeConfig(config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	logs, err := podLogs(config, client.CAData, files[fdLogs])
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find berth's own file: %w", err)
	}
	state := process.StateFolder(os.Getenv, config.Home)
	roots := []string{config.Dir, config.Home}
	err = process.Run(context.Background(), process.Options{
		Config: client, Roots: roots, State: state, Berth: self, PerMinute: queue.Default(state, nil).PerMinute,
		// The pods of this cluster have only the user's own rights to folders of the hosts.
		Results:        process.Results{Image: config.ResultsImage, Roots: roots, Volumes: process.VolumeTypes()},
		S3:             process.S3{Endpoints: config.S3Endpoints, Region: os.Getenv("AWS_REGION")},
		PartitionNodes: true, PodLogs: logs,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err == nil {
		err = errors.New("it ended without a reason")
	}
	return err
}

// podLogs returns the configuration of the server for logs, which answers only the cluster's API
// server.
func podLogs(config slurmJobsConfig, authority []byte, file *os.File) (*process.PodLogs, error) {
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("take the listener for logs: %w", err)
	}
	file.Close()
	certificate, err := tls.X509KeyPair(config.LogServer.Cert, config.LogServer.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate for logs: %w", err)
	}
	return &process.PodLogs{
		Listener: listener, Address: netip.AddrPortFrom(config.LogAddress, listener.Addr().(*net.TCPAddr).AddrPort().Port()),
		Certificate: certificate, Authority: authority, Client: identity.KubeletClient,
	}, nil
}
