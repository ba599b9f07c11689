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
	"berth.dev/berth/internal/launch/archive"
)

// errand is a request of the head to another node while the cluster runs: import
// these archives, which Source serves.
type errand struct {
	Number   int
	Archives []archive.Archive
	Source   archive.Source
}

// report is a node's answer to an errand.
type report struct {
	Number int
	// Problem is empty if the errand succeeded. Otherwise Code is its exit code.
	Problem string
	Code    int
}

func (r report) err() error {
	if r.Problem == "" {
		return nil
	}
	return &exitcode.Error{Code: r.Code, Err: errors.New(r.Problem)}
}

// errands tracks the errands of one head that are not answered yet.
type errands struct {
	mu     sync.Mutex
	number int
	// open holds a channel for each expected answer, by the name of the node.
	open map[string]chan report
}

// deliver passes an answer to its waiter. It drops an answer that nobody waits
// for.
func (e *errands) deliver(node string, r report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answer, ok := e.open[node]; ok && r.Number == e.number {
		delete(e.open, node)
		answer <- r
	}
}

// bringImages sends the archives of a run to the running cluster that it uses.
func (u *user) bringImages(ctx context.Context, archives []archive.Archive) error {
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

// takeImages imports the archives that other runs bring, until ctx ends.
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

// spreadImages imports archives on all nodes. It warns the user if a node is lost
// before it has the archives.
func (r *run) spreadImages(ctx context.Context, images []string) error {
	archives, err := archive.Find(images)
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	if r.members == nil {
		return r.importArchives(ctx, archives, archive.Source{})
	}
	server, err := archive.Serve(archives, r.members.config.Ports)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	defer server.Close()
	if err := r.monitor.awaitExpected(ctx); err != nil {
		return err
	}
	results := make(chan error)
	waiting := 1
	go func() { results <- r.importArchives(ctx, archives, archive.Source{}) }()
	e := &r.monitor.errands
	e.mu.Lock()
	e.number++
	e.open = map[string]chan report{}
	order := errand{Number: e.number, Archives: archives, Source: server.Source}
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

// ask sends an errand to a node and waits for the answer.
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

// runErrand executes an errand of the head and sends it the result.
func (r *run) runErrand(ctx context.Context, head *rendezvous.Peer, order errand) {
	answer := report{Number: order.Number}
	if err := r.importArchives(ctx, order.Archives, order.Source); err != nil {
		answer.Problem, answer.Code = err.Error(), exitcode.Of(err)
	}
	_ = head.Send(ctx, statusMessage{Report: &answer}) // a lost head waits for no answer
}

// connection is another node and the current connection to it. peer is nil if the
// node has not connected to a new head yet.
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
