package login

import (
	"context"
	"errors"
	"slices"
	"time"

	"berth.dev/berth/internal/access/tunnel"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/slurm"
)

const (
	// enterLimit bounds the time from the first srun to an answer, nodeLimit
	// that for one node where there are others to try.
	enterLimit = 40 * time.Second
	nodeLimit  = 5 * time.Second
)

// errNoAnswer: srun waits for something, and nobody knows for how long.
var errNoAnswer = errors.New("no answer")

// entryError is why a tunnel could not be opened, and what srun said.
type entryError struct {
	error
	said string
}

func (e *entryError) Unwrap() error { return e.error }

// entrance searches for a node that reaches the cluster.
type entrance struct {
	order tunnelServerConfig
	ask   slurm.Ask
	// tried lists nodes without a cluster and nodes that did not answer.
	tried []string
	// heterogeneous is found out by trying: squeue need not be asked, mostly.
	heterogeneous bool
	// leave ends a step that did not answer, which takes its time.
	leave func(*step)
}

// enter opens the tunnel: on the nodes that were named, on the first one of the
// job, or on one of the first nodes of its steps. A cluster need not have all
// nodes of its job, and may outlive its first one.
func (e *entrance) enter(ctx context.Context) (*tunnel.Tunnel, *step, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, enterLimit, errNoAnswer)
	defer cancel()
	for _, node := range e.order.Nodes {
		if t, s, err := e.tryBriefly(ctx, node); err == nil {
			return t, s, nil
		}
	}
	t, s, err := e.tryBriefly(ctx, "")
	var refusal *tunnel.Refusal
	if err == nil || errors.As(err, &refusal) && refusal.Reason != tunnel.None {
		return t, s, err
	}
	nodes, unknown := slurm.StepNodes(ctx, e.order.Target.Job, cluster.ControlNodes, e.ask)
	if unknown != nil {
		nodes = nil
	}
	for _, node := range nodes {
		if slices.Contains(e.tried, node) {
			continue
		}
		if t, s, next := e.tryBriefly(ctx, node); next == nil {
			return t, s, nil
		}
	}
	if errors.Is(err, errNoAnswer) {
		return e.try(ctx, "") // as long as it takes
	}
	return nil, nil, err
}

func (e *entrance) tryBriefly(ctx context.Context, node string) (*tunnel.Tunnel, *step, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeLimit, errNoAnswer)
	defer cancel()
	return e.try(ctx, node)
}

// try tries one node, the first of the job where it is empty, and the one that
// it may name.
func (e *entrance) try(ctx context.Context, node string) (*tunnel.Tunnel, *step, error) {
	redirected := false
	for {
		s, err := startStep(e.order.Program, e.order.Target.Job, node, e.heterogeneous)
		if err != nil {
			return nil, nil, err
		}
		t, err := tunnel.Open(ctx, s, tunnel.Order{Version: cluster.Version(), Job: e.order.Target.Job, Step: e.order.Target.Step})
		if err == nil {
			return t, s, nil
		}
		if ctx.Err() != nil {
			e.leave(s)
		} else {
			s.end()
		}
		if !e.heterogeneous && slurm.IsHeterogeneous(s.said.text()) {
			e.heterogeneous = true
			continue
		}
		var refusal *tunnel.Refusal
		if errors.As(err, &refusal) {
			node = refusal.Node
		}
		e.tried = append(e.tried, node)
		if refusal != nil && refusal.Reason == tunnel.Elsewhere && !redirected && !slices.Contains(e.tried, refusal.Head) {
			node, redirected = refusal.Head, true
			continue
		}
		return nil, nil, &entryError{err, s.said.text()}
	}
}
