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
	// controlFile is the control socket in a cluster's directory. It accepts
	// requests.
	controlFile = "control"
	// questionLimit bounds the time for a client to send its request.
	questionLimit = 10 * time.Second
)

// request is a message from a client. Exactly one field is set.
type request struct {
	End    *EndRequest `json:",omitempty"`
	Images []string    `json:",omitempty"`
}

// EndRequest asks a cluster to end.
type EndRequest struct {
	// Grace bounds the time for pods to end.
	Grace time.Duration
}

// Outcome counts the pods that were asked to end and the pods that did.
type Outcome struct {
	Asked, Ended int
}

// Refusal is the error of images that could not be imported, with an exit code.
type Refusal struct {
	Code int
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// ControlSocket receives requests to end a cluster and to import images. The
// permissions of its directory keep other users out.
type ControlSocket struct {
	listener *net.UnixListener
	ends     chan asked
	images   chan asked
	close    func()
	closed   <-chan struct{}
}

// asked is a request and the connection that waits for the answer.
type asked struct {
	request
	conn net.Conn
}

func (a asked) answer(with any) {
	_ = json.NewEncoder(a.conn).Encode(with) // a client that is gone needs no answer
	a.conn.Close()
}

// Listen opens the control socket of the cluster with this directory.
func Listen(dir string) (*ControlSocket, error) {
	path := filepath.Join(dir, controlFile)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("open the control socket of the cluster: %w", err)
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
			return // the listener is closed
		}
		go s.receive(conn)
	}
}

// receive reads the request of one client. If nobody answers the request any
// more, the client sees the end of the connection.
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

// Await returns the request to end, and a function that sends its outcome. Call
// it only once.
func (s *ControlSocket) Await(ctx context.Context) (EndRequest, func(Outcome), error) {
	a, err := s.next(ctx, s.ends)
	if err != nil {
		return EndRequest{}, nil, err
	}
	return *a.End, func(outcome Outcome) { a.answer(outcome) }, nil
}

// AwaitImages returns image archives that a client brings, as on the command line
// but with absolute paths, and a function that sends the result.
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
		return asked{}, errors.New("the cluster accepts no more requests: it is ending")
	case <-ctx.Done():
		return asked{}, context.Cause(ctx)
	}
}

// Close stops accepting requests. Clients that wait for an answer get none. It does
// nothing on nil.
func (s *ControlSocket) Close() {
	if s == nil {
		return
	}
	s.listener.Close()
	s.close()
}

// End asks a cluster to end and returns when nothing of it is left on this host,
// which must be its head. It calls drained once the pods have ended or are about
// to be killed. A second request waits until the cluster has ended.
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

// BringImages imports image archives into a cluster that is ready and returns
// when all its nodes have them. Call it on the head. If the cluster refuses the
// images, the error is a *Refusal.
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

// hasGone reports whether an error means that nobody serves the control socket.
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
