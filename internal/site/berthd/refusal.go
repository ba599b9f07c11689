package berthd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// refusals are the credentials of connections to etcd. They keep why the last one was
// refused, by this host or by etcd: the error of a question that waits for another
// connection until its time is over says nothing of it.
type refusals struct {
	credentials.TransportCredentials
	last *atomic.Pointer[error]
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r refusals) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := r.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		r.last.Store(&err)
		return nil, nil, err
	}
	return refusable{secured, r.last}, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (r refusals) Clone() credentials.TransportCredentials {
	return refusals{r.TransportCredentials.Clone(), r.last}
}

// refusable is a connection whose other side may yet refuse it: by TLS 1.3 that says what it
// holds of this side's certificate in place of the first answer.
type refusable struct {
	net.Conn
	last *atomic.Pointer[error]
}

func (c refusable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	var alert *net.OpError
	switch {
	case n > 0:
		c.last.Store(nil)
	case errors.As(err, &alert) && alert.Op == "remote error":
		c.last.Store(&err)
	}
	return n, err
}

// explain adds to the error of a question to etcd why there is no connection, if it was refused.
func (s *Store) explain(err error) error {
	last := s.refused.Load()
	if err == nil || last == nil {
		return err
	}
	return fmt.Errorf("%w: no connection to etcd: %w: are the certificates valid, and the clocks of both hosts right?", err, *last)
}
