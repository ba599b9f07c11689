package members

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/archive"
)

// ImportRequest is a request of the head to another node while the cluster runs: import
// these archives, which Source serves.
type ImportRequest struct {
	Number   int
	Archives []archive.Archive
	Source   archive.Source
}

// report is a node's answer to a request.
type report struct {
	Number int
	// Problem is empty if the request succeeded. Otherwise Code is its exit code.
	Problem string
	Code    int
}

func (r report) err() error {
	if r.Problem == "" {
		return nil
	}
	return &exitcode.Error{Code: r.Code, Err: errors.New(r.Problem)}
}

// importRequests tracks the requests of one head that are not answered yet.
type importRequests struct {
	mu     sync.Mutex
	number int
	// open holds a channel for each expected answer, by the name of the node.
	open map[string]chan report
}

// deliver passes an answer to its waiter. It drops an answer that nobody waits
// for.
func (e *importRequests) deliver(node string, r report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answer, ok := e.open[node]; ok && r.Number == e.number {
		delete(e.open, node)
		answer <- r
	}
}

// connection is another node and the current connection to it. peer is nil if the
// node has not connected to a new head yet.
type connection struct {
	name string
	peer *rendezvous.Peer
}

// connections returns the connections to all other nodes.
func (m *Members) connections() []connection {
	return append(m.ofStep(), m.getSeats().connections()...)
}

// ofStep returns the connections to the nodes of the step.
func (m *Members) ofStep() []connection {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []connection
	for _, w := range m.others {
		all = append(all, connection{w.name, w.peer})
	}
	return all
}

// BringImages imports archives on all nodes: on the others by requests, and here by
// the function here. It warns the user if a node is lost before it has them.
func (m *Monitor) BringImages(ctx context.Context, archives []archive.Archive, here func() error) error {
	if !m.Several() {
		return here()
	}
	server, err := archive.Serve(archives, m.config.Ports)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	defer server.Close()
	if err := m.AwaitExpected(ctx); err != nil {
		return err
	}
	results := make(chan error)
	waiting := 1
	go func() { results <- here() }()
	e := &m.importRequests
	e.mu.Lock()
	e.number++
	e.open = map[string]chan report{}
	request := ImportRequest{Number: e.number, Archives: archives, Source: server.Source}
	for _, w := range m.connections() {
		answer := make(chan report, 1)
		e.open[w.name] = answer
		waiting++
		go func() { results <- m.ask(ctx, w, request, answer) }()
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

// ask sends a request to a node and waits for the answer.
func (m *Monitor) ask(ctx context.Context, w connection, request ImportRequest, answer <-chan report) error {
	if w.peer != nil && w.peer.Send(ctx, headMessage{Import: &request}) == nil {
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
	for _, a := range request.Archives {
		names = append(names, filepath.Base(a.Path))
	}
	m.log.Warn(fmt.Sprintf("node %s is lost, and will not have the images of %s when it comes back", w.name, strings.Join(names, ", ")))
	return nil
}
