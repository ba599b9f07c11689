// Package sequence runs sequences of the bench next to a cluster, or next to a
// job's other steps, instead of a program in a container. Each sequence returns
// figures. The package does not assign sequences to cases, and does not start
// clusters. Package deliver delivers images.
package sequence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// Spec selects and configures a sequence.
type Spec struct {
	// What is the name of a sequence.
	What string
	// Nodes is the number of nodes of the cluster or job; CPUs is a trial's share
	// of each.
	Nodes, CPUs int
	// MemoryMB is the memory of a trial on each node; 0 for the site's default.
	MemoryMB int
	// Hosts lists the participating hosts of a plain job, as many as Nodes.
	Hosts []string
	// Image is the image of the programs, as pods name it.
	Image string
	// Kubectl is the command that queries the cluster.
	Kubectl []string
	// Through is the container command that starts programs of a plain job on
	// their hosts.
	Through []string
	// Given is set if the cluster existed before, so that its owner is unknown.
	Given bool
	// Counted makes the result include the share of the connections between pods that
	// used the fast path.
	Counted    bool
	Parameters map[string]string
	// Job and Outside are sbatch's options for the measured job, and for the job whose
	// steps alternate with the measured job's. Step holds srun's options in the first.
	Job, Step, Outside []string
	// Timeout bounds the whole sequence.
	Timeout time.Duration
}

// Names of sequences.
const (
	Requirements = "requirements"
	Nodes        = "nodes"
	MPISteps     = "mpi-steps"
	MPIPods      = "mpi-pods"
	HPCCJob      = "hpcc-job"
	HPCCPods     = "hpcc-pods"
	Program      = "program"
	Steps        = "steps"
)

// Result is the result of a sequence.
type Result struct {
	Values []record.Value `json:"values"`
	// At is the time of the awaited event, in nanoseconds since 1970.
	At int64 `json:"at,omitempty"`
	// Left counts the connections that the fast path left to the overlay, by reason.
	Left map[string]float64 `json:"left_to_overlay,omitempty"`
	// MPI is the implementation and version of MPI, as mpirun reports it.
	MPI string `json:"mpi,omitempty"`
}

// Main runs the sequence of a Spec, which text holds in JSON, and prints the Result in
// JSON.
func Main(ctx context.Context, text string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("parse the spec of the sequence: %w", err)
	}
	if len(s.Kubectl) == 0 {
		s.Kubectl = []string{"kubectl"}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("%s took longer than %s", s.What, s.Timeout))
	defer cancel()
	does := map[string]func(context.Context, Spec) (Result, error){
		Requirements: requirements, Nodes: nodes, MPISteps: mpiSteps, MPIPods: mpiPods, HPCCJob: hpccJob, HPCCPods: hpccPods, Program: program, Steps: steps,
	}[s.What]
	if does == nil {
		return fmt.Errorf("there is no sequence %q", s.What)
	}
	result, err := does(ctx, s)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// kubectl queries the cluster.
func (s Spec) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return run(ctx, stdin, append(slices.Clone(s.Kubectl), args...)...)
}

// run runs a program and returns its standard output. An error includes its standard
// error.
func run(ctx context.Context, stdin string, argv ...string) (string, error) {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Stdin = strings.NewReader(stdin)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}

// errNo is the error of a check that was made and whose answer is no.
var errNo = errors.New("no") //nolint:gochecknoglobals // a constant
