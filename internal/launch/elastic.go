package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/heap"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/elastic/pilots"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/node/sandbox"
)

// ElasticArg starts this program again as the role that submits pilots. main calls ElasticRole
// then.
const ElasticArg = "elastic-role"

const (
	// pilotGrace is the time that pods of a pilot have to end before its time limit.
	pilotGrace = time.Minute
	// pilotNodeWait is the time that a pilot waits for a cluster that starts again. Slurm starts a
	// requeued job after two minutes.
	pilotNodeWait = 10 * time.Minute
	// endPilotsLimit bounds the time to cancel pilots that have not started. After a signal they
	// have the time of the pods, and then lateEndPilotsLimit: Slurm kills everything soon.
	endPilotsLimit     = 10 * time.Second
	lateEndPilotsLimit = 200 * time.Millisecond
	// returnsWord tells the role that the cluster's job starts again. The next role needs the pilots
	// that wait.
	returnsWord = "r"
	// elasticSettle is the time after which the role drops the memory that its start needed.
	elasticSettle = 20 * time.Second
)

// elasticConfig is the configuration of the role.
type elasticConfig struct {
	Kubeconfig []byte
	// Job is the job of the cluster, and Seats the number of nodes that may join.
	Job   string
	Seats int
	Idle  time.Duration
	Node  pilots.Node
}

// servePilots starts the role that submits pilots, if nodes of other jobs may join. The role runs
// in the namespaces of the host, because it calls Slurm's commands.
func (r *run) servePilots(ctx context.Context) error {
	if r.Spec.Seats == 0 {
		r.openGates(ctx, "the cluster has no --elastic")
		return nil
	}
	if _, err := exec.LookPath("sbatch"); err != nil {
		r.openGates(ctx, "the host of the cluster has no sbatch")
		r.Log.Warn(fmt.Sprintf("pods that do not fit bring no nodes: %v; start the cluster on a host with Slurm's commands, or call 'berth join' in other jobs", err))
		return nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("--elastic: %w", err))
	}
	self, err := os.Executable()
	if err != nil {
		return exitcode.Wrap(exitcode.Internal, fmt.Errorf("find berth's own file: %w", err))
	}
	config := elasticConfig{
		Kubeconfig: r.identities.Kubeconfig, Job: r.allocation.Job.ID, Seats: r.Spec.Seats, Idle: cmp.Or(r.Spec.Idle, cluster.DefaultIdle),
		Node: pilots.Node{
			Berth: self, JoinOptions: joinOptions(r.Spec, r.nodesReturn()), Dir: home, State: pilotFolder(r.Getenv, home),
			Roles: workerMemory, Pods: int64(r.plan.Node.MaxPods),
			// Other hosts are like this one, until one is not.
			FilesShare: memoryFilesShare, FilesInMemory: r.host.state.Kind == probe.KindMemory,
		},
	}
	role, end := ownRole(r.supervisor, "elastic", ElasticArg, config, nil)
	role.Optional, role.Patient = false, true // pods wait until it has read their annotations
	r.endPilotRole = end
	return r.addRoles(role)
}

// openGates lets the scheduler place pods of the saved state that wait for a role to read their
// annotations. This cluster has no such role, for the reason why.
func (r *run) openGates(ctx context.Context, why string) {
	if r.Spec.State == "" {
		return
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(r.identities.Kubeconfig)
	if err == nil {
		err = pilots.OpenGates(ctx, config, why, r.Log)
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Warn(fmt.Sprintf("pods with annotations for Slurm may wait for ever: %v; delete and create them again", err))
	}
}

// cancelPilots has the role cancel the pilots that have not started, unless the cluster's job starts
// again. It returns a channel that is closed when the role has ended; nil without the role.
func (r *run) cancelPilots() <-chan struct{} {
	switch {
	case r.endPilotRole == nil:
		return nil
	case r.moves.Load():
		return r.endPilotRole(returnsWord)
	}
	return r.endPilotRole("")
}

// endPilots ends the role that submits pilots.
func (r *run) endPilots() error {
	limit := endPilotsLimit
	if r.pilotsHadTime {
		limit = lateEndPilotsLimit
	}
	awaitEnd(context.Background(), r.cancelPilots(), limit)
	return nil
}

// awaitEnd waits until a channel is closed, for limit at most. It does not wait for nil.
func awaitEnd(ctx context.Context, ended <-chan struct{}, limit time.Duration) {
	if ended == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// joinOptions returns the options of 'berth join' for pilots: the options of the cluster that
// concern a host. returns reports whether the cluster may start again. A pilot that starts in
// between has waited in the queue for a long time, so it waits for the cluster.
func joinOptions(spec cluster.Spec, returns bool) []string {
	options := []string{"--grace=" + pilotGrace.String()}
	if returns {
		options = append(options, "--node-wait="+pilotNodeWait.String())
	}
	for name, value := range map[string]string{
		"state-dir": spec.StateDir, "interface": spec.Network.Interface, "port-range": spec.Network.Ports,
		"rendezvous-dir": spec.Network.Folder, "debug-dir": spec.DebugDir,
	} {
		if value != "" {
			options = append(options, "--"+name+"="+value)
		}
	}
	slices.Sort(options)
	return options
}

// pilotFolder returns the folder for the scripts and outputs of pilots, which the hosts of a
// cluster share.
func pilotFolder(getenv func(string) string, home string) string {
	return queue.StateFolder(getenv, home, "elastic")
}

// cancelPilotsOf cancels the pilots of a cluster that have not started, in another process than the
// role.
func cancelPilotsOf(ctx context.Context, job string) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("cancel the pilots that wait: %w", err)
	}
	options := queue.Default(pilotFolder(os.Getenv, home), slog.New(slog.DiscardHandler))
	jobs, err := queue.New(options)
	if err != nil {
		return err
	}
	return pilots.CancelPending(ctx, options.Ask, jobs.Submitted, job)
}

// ElasticRole runs the role. It returns 0 when the process that started it has ended it, and 1
// after an error.
func ElasticRole() int {
	sandbox.OutliveSignals()
	if err := submitPilots(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// submitPilots submits pilots until the process that started this one has ended.
func submitPilots() error {
	var config elasticConfig
	files, err := linux.ReceiveFiles(&config, fdLife)
	if err != nil {
		return fmt.Errorf("read what to submit: %w", err)
	}
	ctx, end := context.WithCancelCause(context.Background())
	go func() {
		if n, _ := files[fdLife].Read(make([]byte, 1)); n > 0 {
			end(pilots.ErrReturns)
		}
		end(errors.New("the cluster ends"))
	}()
	client, err := clientcmd.RESTConfigFromKubeConfig(config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client.QPS, client.Burst, client.UserAgent = 50, 100, "berth-elastic"
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	options := queue.Default(config.Node.State, log)
	options.Env = append(options.Env, pilotEnv(os.Environ())...)
	config.Node.Partition = os.Getenv("SBATCH_PARTITION")
	jobs, err := queue.New(options)
	if err != nil {
		return err
	}
	loop, err := pilots.New(pilots.Options{
		Config: client, Job: config.Job, Seats: config.Seats, Idle: config.Idle, Node: config.Node,
		Slurm: jobs, Test: jobs.Test, Forget: jobs.Forget, Submitted: jobs.Submitted, Ask: options.Ask, Interval: options.Interval, Log: log,
	})
	if err != nil {
		return err
	}
	go heap.Settle(ctx, elasticSettle)
	return loop.Run(ctx)
}

// pilotVariables lists the variables of sbatch that pilots obey: where the user's jobs run, and
// for how long. Others, such as SBATCH_ARRAY_INX, would make other jobs of them.
var pilotVariables = []string{
	"SBATCH_ACCOUNT", "SBATCH_CONSTRAINT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_TIMELIMIT", "SBATCH_WCKEY",
}

// pilotEnv returns the entries of an environment that pilots obey.
func pilotEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !slices.Contains(pilotVariables, name)
	})
}
