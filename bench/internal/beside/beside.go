// Package beside has what the bench does beside a cluster, or beside a job's other
// steps, in place of a program in a container: a sequence that ends in figures. Which
// cases it belongs to, and how the cluster is started, belongs elsewhere; images that
// are delivered have a package of their own.
package beside

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

// Spec says what is done.
type Spec struct {
	// What is one of the names below.
	What string
	// Nodes is how many the cluster has, or the job, and CPUs what a trial has on each.
	Nodes, CPUs int
	// MemoryMB is what it has on each, 0 for what the site gives.
	MemoryMB int
	// Hosts are those of a plain job that take part, as many as Nodes.
	Hosts []string
	// Image is that of the programs, as pods name it.
	Image string
	// Kubectl is how the cluster is asked.
	Kubectl []string
	// Through is what programs of a plain job are started by on their hosts: a container.
	Through []string
	// Given: the cluster is not the bench's, which knows not who has started it.
	Given bool
	// Counted: who makes the connections between pods is noted.
	Counted    bool
	Parameters map[string]string
	// Job and Outside are options of sbatch for the job that is measured, and for the one
	// whose steps take turns with its own; Step are srun's, in the first.
	Job, Step, Outside []string
	// Timeout is for all of it.
	Timeout time.Duration
}

// What there is.
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

// Result is what it gave.
type Result struct {
	Values []record.Value `json:"values"`
	// At is when what was waited for had come, in nanoseconds since 1970.
	At int64 `json:"at,omitempty"`
	// Left are the connections that the fast path left to the overlay, by the reason.
	Left map[string]float64 `json:"left_to_overlay,omitempty"`
	// MPI is that of the programs, as its mpirun says.
	MPI string `json:"mpi,omitempty"`
}

// Main does what a spec says and prints the result.
func Main(ctx context.Context, text string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("read what to do: %w", err)
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
		return fmt.Errorf("there is no %q", s.What)
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

// kubectl asks the cluster.
func (s Spec) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return run(ctx, stdin, append(slices.Clone(s.Kubectl), args...)...)
}

// run runs a program and returns what it printed.
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

// errNo is what a check says that found something else than it wanted.
var errNo = errors.New("no") //nolint:gochecknoglobals // a constant
