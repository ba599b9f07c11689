package persistent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// controlFile is the socket in a cluster's directory where it is asked for
	// something.
	controlFile = "door"
	// questionLimit bounds the time in which somebody says what he wants.
	questionLimit = 10 * time.Second
)

// request is what is said at the door: one of the two.
type request struct {
	End    *EndRequest `json:",omitempty"`
	Images []string    `json:",omitempty"`
}

// EndRequest tells a cluster to end.
type EndRequest struct {
	// Grace is how long pods may take for it, at most.
	Grace time.Duration
}

// Outcome is what became of the pods that ran.
type Outcome struct {
	Asked, Ended int
}

// Refusal is why images are not on the cluster's nodes, with an exit code.
type Refusal struct {
	Code int
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// ControlSocket is where a cluster is told to end, and given images. The directory keeps
// others out.
type ControlSocket struct {
	listener *net.UnixListener
	ends     chan asked
	images   chan asked
	close    func()
	closed   <-chan struct{}
}

// asked is a request and who waits for the answer.
type asked struct {
	request
	conn net.Conn
}

func (a asked) answer(with any) {
	_ = json.NewEncoder(a.conn).Encode(with) // who has gone needs no answer
	a.conn.Close()
}

// Listen opens the door of the cluster with this directory.
func Listen(dir string) (*ControlSocket, error) {
	path := filepath.Join(dir, controlFile)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("open the door of the cluster: %w", err)
	}
	closed := make(chan struct{})
	d := &ControlSocket{listener: listener, ends: make(chan asked), images: make(chan asked), closed: closed}
	d.close = sync.OnceFunc(func() { close(closed) })
	go d.serve()
	return d, nil
}

func (s *ControlSocket) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // it was closed
		}
		go s.receive(conn)
	}
}

// receive takes in what one client wants. Who is not answered any more sees the end
// of the connection.
func (s *ControlSocket) receive(conn net.Conn) {
	a := asked{conn: conn}
	_ = conn.SetReadDeadline(time.Now().Add(questionLimit))
	if json.NewDecoder(conn).Decode(&a.request) != nil {
		conn.Close()
		return
	}
	to := s.images
	if a.End != nil {
		to = s.ends
	}
	select {
	case to <- a:
	case <-s.closed:
		conn.Close()
	}
}

// Await returns the order to end, and a function that says what came of it. It
// is called once.
func (s *ControlSocket) Await(ctx context.Context) (EndRequest, func(Outcome), error) {
	a, err := s.next(ctx, s.ends)
	if err != nil {
		return EndRequest{}, nil, err
	}
	return *a.End, func(outcome Outcome) { a.answer(outcome) }, nil
}

// AwaitImages returns image archives that somebody brings, as the command line
// names them, with absolute paths, and a function that says what came of it.
func (s *ControlSocket) AwaitImages(ctx context.Context) ([]string, func(*Refusal), error) {
	a, err := s.next(ctx, s.images)
	if err != nil {
		return nil, nil, err
	}
	return a.Images, func(refusal *Refusal) { a.answer(refusal) }, nil
}

func (s *ControlSocket) next(ctx context.Context, from <-chan asked) (asked, error) {
	select {
	case a := <-from:
		return a, nil
	case <-s.closed:
		return asked{}, errors.New("the door of the cluster was closed")
	case <-ctx.Done():
		return asked{}, context.Cause(ctx)
	}
}

// Close lets nobody in any more. Who is waiting for an answer gets none.
func (s *ControlSocket) Close() {
	s.listener.Close()
	s.close()
}

// End tells a cluster to end, from its head, and returns when nothing of it is
// left there. It calls drained once pods have ended, or are about to be killed. A
// second order waits for the first one's end.
func (c Cluster) End(ctx context.Context, o EndRequest, drained func(Outcome)) (Outcome, error) {
	ended := c.Ended()
	var outcome Outcome
	err := c.ask(ctx, request{End: &o}, &outcome)
	if err != nil && !hasGone(err) {
		return outcome, fmt.Errorf("tell the cluster to end: %w", err)
	}
	if err == nil {
		drained(outcome)
	}
	select {
	case <-ended:
		return outcome, nil
	case <-ctx.Done():
		return outcome, fmt.Errorf("wait for the end of the cluster: %w", context.Cause(ctx))
	}
}

// BringImages gives image archives to a cluster that is ready, from its head, and
// returns when all of its nodes have them. An error that says why they have not
// is a *Refusal.
func (c Cluster) BringImages(ctx context.Context, images []string) error {
	var refusal *Refusal
	err := c.ask(ctx, request{Images: images}, &refusal)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && hasGone(err):
		return ErrEnded
	case err != nil:
		return fmt.Errorf("give images to the cluster: %w", err)
	case refusal != nil:
		return refusal
	}
	return nil
}

// hasGone tells whether nobody is behind a door any more.
func hasGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNRESET)
}

func (c Cluster) ask(ctx context.Context, r request, answer any) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(c.Path, controlFile))
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return err
	}
	return json.NewDecoder(conn).Decode(answer)
}
