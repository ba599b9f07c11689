package store

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// recordingCredentials secures connections to etcd and records why the last one was refused,
// by this host or by etcd. A request that waits for a connection until it times out returns
// an error without that reason.
type recordingCredentials struct {
	credentials.TransportCredentials
	last *atomic.Pointer[error]
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r recordingCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := r.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		r.last.Store(&err)
		return nil, nil, err
	}
	return recordingConn{secured, r.last}, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (r recordingCredentials) Clone() credentials.TransportCredentials {
	return recordingCredentials{r.TransportCredentials.Clone(), r.last}
}

// recordingConn records a refusal by the other side. In TLS 1.3 the server rejects a client's
// certificate after the handshake, with an alert instead of its first answer.
type recordingConn struct {
	net.Conn
	last *atomic.Pointer[error]
}

func (c recordingConn) Read(b []byte) (int, error) {
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
