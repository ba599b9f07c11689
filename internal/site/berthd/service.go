package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

const (
	// servicePeriod is the time between two looks at this node.
	servicePeriod = 10 * time.Second
	// serviceFailures is the number of looks in a row that must fail before a node is drained.
	serviceFailures = 3
	// inService is the file that exists while Slurm may send jobs to this node, as far as berthd
	// knows. The plugin removes it when it drains the node. With the file, no look asks slurmctld.
	inService = "in-service"
	// restartLimit bounds how long berthd may be away. JOB_RESTART_LIMIT of the plugin is the same.
	restartLimit = 30 * time.Second
)

// service drains this node while it is too ill for networks, and resumes nodes that berth has
// drained. etcd has no part in it: a node without etcd is not ill.
type service struct {
	node string
	// run is berthd's directory.
	run string
	log *slog.Logger
	// failures counts the looks in a row that have failed. drained reports whether Slurm knows.
	failures int
	drained  bool
}

// follow looks at this node until the context ends.
func (s *service) follow(ctx context.Context) error {
	s.look(ctx)
	return repeat(ctx, servicePeriod, func() { s.look(ctx) })
}

// probe reports why this node can make no networks: berthd's directory takes no file.
func (s *service) probe() error {
	file, err := os.CreateTemp(s.run, "probe-")
	if err != nil {
		return fmt.Errorf("write into %s: %w: make room there", s.run, err)
	}
	// As much as the files of a pod take.
	_, err = file.Write(make([]byte, 16<<10))
	if err = errors.Join(err, file.Close(), os.Remove(file.Name())); err != nil {
		return fmt.Errorf("write into %s: %w: make room there", s.run, err)
	}
	return nil
}

// look drains or resumes this node. A failure of Slurm is tried again at the next look.
func (s *service) look(ctx context.Context) {
	mark := filepath.Join(s.run, inService)
	if problem := s.probe(); problem != nil {
		s.failures++
		if s.failures < serviceFailures || s.drained {
			return
		}
		switch err := drain(ctx, s.node, problem); {
		case err == nil:
			s.log.Error("this node is drained, as it can make no networks", "reason", problem)
			fallthrough
		case errors.Is(err, errNoNode):
			s.drained = true
			_ = os.Remove(mark)
		case ctx.Err() == nil:
			s.log.Warn("drain this node", "error", err)
		}
		return
	}
	s.failures, s.drained = 0, false
	if _, err := os.Stat(mark); err == nil {
		return
	}
	n, err := lookUp(ctx, s.node)
	if err == nil && n.ours {
		if err = pluginLoads(ctx); err != nil {
			return // the plugin is not mended yet
		}
		if err = undrain(ctx, s.node); err == nil {
			s.log.Info("this node is in service again")
		}
	}
	if err != nil && !errors.Is(err, errNoNode) {
		if ctx.Err() == nil {
			s.log.Warn("look whether this node is drained", "error", err)
		}
		return
	}
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		s.log.Warn("remember that this node is in service", "error", err)
	}
}

// healthcheck reports why jobs on this node would get no network, or the wrong one. In a prolog it
// asks only for the plugin: the plugin itself waits for berthd, and tells the user.
func healthcheck(ctx context.Context, config siteconf.Config, prolog bool) error {
	if err := pluginLoads(ctx); err != nil || prolog {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	var away error
	for {
		answer, _, err := siteconf.Ask(ctx, config.Run, siteconf.Message{Verb: siteconf.VerbStatus})
		if err == nil {
			if ill := answer.Fields["ill"]; ill != "" {
				return errors.New(ill)
			}
			return nil
		}
		if away == nil || ctx.Err() == nil {
			away = err
		}
		select {
		case <-ctx.Done():
			return away
		case <-time.After(store.Retry):
		}
	}
}

// checkService drains the node if healthcheck finds a problem, and returns that.
func checkService(ctx context.Context, run, node string, problem error) error {
	if problem == nil {
		return nil
	}
	if err := drain(ctx, node, problem); err != nil {
		return fmt.Errorf("%w (and this node is not drained: %w)", problem, err)
	}
	// berthd looks at it from now on, and resumes it.
	if err := os.Remove(filepath.Join(run, inService)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w (and berthd will not resume this node: %w)", problem, err)
	}
	return problem
}
