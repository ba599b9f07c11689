package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// greetLimit bounds the far end's wait for the near end's request.
	greetLimit = 30 * time.Second
	// partingLimit limits how long the near end may take to end the stream after a
	// refusal or a farewell.
	partingLimit = 2 * time.Second
)

// Cluster is a cluster that the far end can reach.
type Cluster struct {
	Name        string
	Credentials Credentials
	// Others lists other nodes that reach the cluster, as in Answer.
	Others []string
	// Dial connects to the cluster's API server.
	Dial func(ctx context.Context) (net.Conn, error)
	// Ended is closed when the cluster is gone.
	Ended <-chan struct{}
}

// find returns the cluster for a request. A *Refusal names for the near end which other
// node or step to try.
type find func(ctx context.Context, request Request) (*Cluster, error)

// Serve runs the far end. It answers the near end's request over the stream, and
// forwards connections to the cluster until the cluster, the stream or the context
// ends. self has the node and the version of the far end's berth.
func Serve(ctx context.Context, stream io.ReadWriteCloser, self Answer, find find) error {
	if _, err := io.WriteString(stream, opening); err != nil {
		return fmt.Errorf("open the tunnel: %w", err)
	}
	session, err := yamux.Server(stream, settings())
	if err != nil {
		return fmt.Errorf("start the tunnel's multiplexer: %w", err)
	}
	defer session.Close()
	control, request, err := awaitRequest(session)
	if err != nil {
		return err
	}
	self.Protocol = Protocol
	cluster, err := find(ctx, request)
	if err == nil {
		self.Cluster, self.Others = cluster.Name, cluster.Others
		self.Sealed, err = encrypt(request.Key, cluster.Credentials)
	}
	if err != nil {
		var refusal *Refusal
		if !errors.As(err, &refusal) {
			refusal = &Refusal{Reason: Other, Text: err.Error()}
		}
		refusal.Node = self.Node
		self.Refusal, self.Sealed = refusal, nil
	}
	said := json.NewEncoder(control)
	if err := said.Encode(self); err != nil {
		return fmt.Errorf("answer the near end of the tunnel: %w", err)
	}
	if self.Refusal != nil {
		awaitClose(session)
		return nil
	}
	connections := make(chan net.Conn)
	go func() {
		defer close(connections)
		for {
			connection, err := session.Accept()
			if err != nil {
				return
			}
			connections <- connection
		}
	}()
	for {
		select {
		case connection, open := <-connections:
			if !open {
				return nil // the near end has closed the session
			}
			go serve(ctx, connection, cluster)
		case <-cluster.Ended:
			_ = said.Encode(farewell{Reason: "the cluster has ended"}) // the near end may have gone, too
			awaitClose(session)
			return nil
		case <-ctx.Done():
			_ = said.Encode(farewell{Reason: context.Cause(ctx).Error()})
			awaitClose(session)
			return context.Cause(ctx)
		}
	}
}

func awaitRequest(session *yamux.Session) (net.Conn, Request, error) {
	ctx, cancel := context.WithTimeout(context.Background(), greetLimit)
	defer cancel()
	control, err := session.AcceptStreamWithContext(ctx)
	if err != nil {
		return nil, Request{}, fmt.Errorf("wait for the near end of the tunnel: %w", err)
	}
	var request Request
	if err := newDecoder(control).Decode(&request); err != nil {
		return nil, Request{}, fmt.Errorf("read what the near end of the tunnel wants: %w", err)
	}
	return control, request, nil
}

// awaitClose gives the near end time to read the last message.
func awaitClose(session *yamux.Session) {
	select {
	case <-session.CloseChan():
	case <-time.After(partingLimit):
	}
}

func serve(ctx context.Context, connection net.Conn, cluster *Cluster) {
	server, err := cluster.Dial(ctx)
	if err != nil {
		connection.Close() // the client sees a closed connection, as if the server were dead
		return
	}
	Join(connection, server)
}

// Join copies both ways between two connections until both directions have
// ended, and closes them.
func Join(a, b net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(a, b)
	}()
	pass(b, a)
	<-done
	a.Close()
	b.Close()
}

// pass copies one direction, and then closes it.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, can := to.(interface{ CloseWrite() error }); can && err == nil {
		_ = half.CloseWrite()
		return
	}
	to.Close() // on a multiplexed stream, Close closes only this direction
	if err != nil {
		from.Close()
	}
}
