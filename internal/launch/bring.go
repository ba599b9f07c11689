package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
)

// errand is what the head asks of another node while the cluster runs: to import
// archives, which are to be had from Source.
type errand struct {
	Number   int
	Archives []archive
	Source   archiveSource
}

// report is the node's answer.
type report struct {
	Number int
	// Problem is empty where all is done, otherwise Code goes with it.
	Problem string
	Code    int
}

func (r report) err() error {
	if r.Problem == "" {
		return nil
	}
	return &exitcode.Error{Code: r.Code, Err: errors.New(r.Problem)}
}

// errands are those that other nodes have not answered, of one head.
type errands struct {
	mu     sync.Mutex
	number int
	// open are the answers that are awaited, by the nodes' names.
	open map[string]chan report
}

// deliver takes in an answer; one that nobody awaits any more is none.
func (e *errands) deliver(node string, r report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answer, ok := e.open[node]; ok && r.Number == e.number {
		delete(e.open, node)
		answer <- r
	}
}

// bringImages takes the archives that a run brings to a cluster that is up to it.
func (u *user) bringImages(ctx context.Context, archives []archive) error {
	if len(archives) == 0 {
		return nil
	}
	var images []string
	for _, a := range archives {
		image := a.Path
		if a.Name != "" {
			image = a.Name + "=" + image
		}
		images = append(images, image)
	}
	err := u.cluster.BringImages(ctx, images)
	var refusal *persistent.Refusal
	if errors.As(err, &refusal) {
		return exitcode.Wrap(refusal.Code, refusal)
	}
	if err == nil {
		u.Report("images")
	}
	return exitcode.Wrap(exitcode.Unavailable, err)
}

// takeImages imports the archives that runs bring, until ctx ends.
func (r *run) takeImages(ctx context.Context) {
	for {
		images, answer, err := r.control.AwaitImages(ctx)
		if err != nil {
			return
		}
		if err := r.spreadImages(ctx, images); err != nil {
			answer(&persistent.Refusal{Code: exitcode.Of(err), Text: err.Error()})
			continue
		}
		answer(nil)
	}
}

// spreadImages imports archives on all nodes. One that is lost meanwhile has
// them not, and the user is told.
func (r *run) spreadImages(ctx context.Context, images []string) error {
	archives, err := findArchives(images)
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	if r.members == nil {
		return r.importArchives(ctx, archives, archiveSource{})
	}
	server, err := serveArchives(archives, r.members.config.Ports)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	defer server.close()
	if err := r.monitor.awaitExpected(ctx); err != nil {
		return err
	}
	results := make(chan error)
	waiting := 1
	go func() { results <- r.importArchives(ctx, archives, archiveSource{}) }()
	e := &r.monitor.errands
	e.mu.Lock()
	e.number++
	e.open = map[string]chan report{}
	order := errand{Number: e.number, Archives: archives, Source: server.source}
	for _, w := range r.members.connections() {
		answer := make(chan report, 1)
		e.open[w.name] = answer
		waiting++
		go func() { results <- r.ask(ctx, w, order, answer) }()
	}
	e.mu.Unlock()
	var problems []error
	for range waiting {
		if err := <-results; err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// ask sends an errand to a node, and waits for the answer.
func (r *run) ask(ctx context.Context, w connection, order errand, answer <-chan report) error {
	if w.peer != nil && w.peer.Send(ctx, order) == nil {
		select {
		case said := <-answer:
			if err := said.err(); err != nil {
				return fmt.Errorf("node %s: %w", w.name, err)
			}
			return nil
		case <-w.peer.Done():
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var names []string
	for _, a := range order.Archives {
		names = append(names, filepath.Base(a.Path))
	}
	r.Log.Warn(fmt.Sprintf("node %s is lost, and will not have the images of %s when it comes back", w.name, strings.Join(names, ", ")))
	return nil
}

// runErrand does what the head asks, and tells the head of the result.
func (r *run) runErrand(ctx context.Context, head *rendezvous.Peer, order errand) {
	answer := report{Number: order.Number}
	if err := r.importArchives(ctx, order.Archives, order.Source); err != nil {
		answer.Problem, answer.Code = err.Error(), exitcode.Of(err)
	}
	_ = head.Send(ctx, statusMessage{Report: &answer}) // a head that is lost waits for nothing
}

// connection is another node, and the connection to it at one moment: none, where it
// has not come to a head that is new.
type connection struct {
	name string
	peer *rendezvous.Peer
}

func (m *members) connections() []connection {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []connection
	for _, w := range m.others {
		all = append(all, connection{w.name, w.peer})
	}
	return all
}
