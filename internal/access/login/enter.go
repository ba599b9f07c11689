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
	// enterLimit bounds the time from the first srun to an answer. nodeLimit bounds
	// the time for one node while there are others to try.
	enterLimit = 40 * time.Second
	nodeLimit  = 5 * time.Second
)

// errNoAnswer reports that nothing answered through srun in time.
var errNoAnswer = errors.New("no answer")

// entryError is the reason why a tunnel could not be opened, with srun's messages.
type entryError struct {
	error
	said string
}

func (e *entryError) Unwrap() error { return e.error }

// entrance searches for a node that reaches the cluster.
type entrance struct {
	config tunnelServerConfig
	ask    slurm.Ask
	// tried lists nodes without a cluster and nodes that did not answer.
	tried []string
	// heterogeneous reports whether the job is heterogeneous. It is set after
	// srun's first error, which usually saves a query of Slurm.
	heterogeneous bool
	// leave ends a step that did not answer. That takes time, so leave does not
	// wait.
	leave func(*step)
}

// enter opens the tunnel. It tries the named nodes, the first node of the job, and
// then the first nodes of the job's steps. A cluster need not use all nodes of its
// job, and may outlive the first one.
func (e *entrance) enter(ctx context.Context) (*tunnel.Tunnel, *step, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, enterLimit, errNoAnswer)
	defer cancel()
	for _, node := range e.config.Nodes {
		if t, s, err := e.tryBriefly(ctx, node); err == nil {
			return t, s, nil
		}
	}
	t, s, err := e.tryBriefly(ctx, "")
	var refusal *tunnel.Refusal
	if err == nil || errors.As(err, &refusal) && refusal.Reason != tunnel.None {
		return t, s, err
	}
	nodes, unknown := slurm.StepNodes(ctx, e.config.Target.Job, cluster.ControlNodes, e.ask)
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
		return e.try(ctx, "") // without the limit for one node
	}
	return nil, nil, err
}

// tryBriefly works like try, for nodeLimit at most.
func (e *entrance) tryBriefly(ctx context.Context, node string) (*tunnel.Tunnel, *step, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeLimit, errNoAnswer)
	defer cancel()
	return e.try(ctx, node)
}

// try tries a node, or the job's first node if node is empty. If that node refers
// to another one, it tries that, too.
func (e *entrance) try(ctx context.Context, node string) (*tunnel.Tunnel, *step, error) {
	redirected := false
	for {
		s, err := startStep(e.config.Program, e.config.Target.Job, node, e.heterogeneous)
		if err != nil {
			return nil, nil, err
		}
		t, err := tunnel.Open(ctx, s, tunnel.Request{Version: cluster.Version(), Job: e.config.Target.Job, Step: e.config.Target.Step})
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
