package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"berth.dev/berth/internal/site/siteconf"
)

// connection is the connection to etcd.
type connection struct {
	client *clientv3.Client
	// refused holds the reason why the last connection was refused. It is nil after
	// another connection has been used.
	refused atomic.Pointer[error]
}

const (
	// Limit bounds how long a request to etcd may take.
	Limit = 5 * time.Second
	// Retry is the pause before another attempt.
	Retry = 500 * time.Millisecond
)

// reconnect limits the pauses between attempts to reach etcd. By default gRPC's
// pauses grow to two minutes, and a node would fail jobs for that long after etcd is
// back.
var reconnect = backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

var errNoEtcd = errors.New("etcd does not answer")

// Open connects to etcd, which does not have to answer yet.
func Open(config siteconf.Config) (*Store, error) {
	info := transport.TLSInfo{CertFile: config.Etcd.Cert, KeyFile: config.Etcd.Key, TrustedCAFile: config.Etcd.CA}
	security, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read keys for etcd: %w", err)
	}
	s := New(nil, config)
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: config.Etcd.Endpoints, TLS: security,
		// The client returns as errors all that it would log.
		Logger:            zap.NewNop(),
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: Limit}),
			grpc.WithTransportCredentials(recordingCredentials{credentials.NewTLS(security), &s.refused}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return s, nil
}

// Client returns the connection to etcd.
func (c *connection) Client() *clientv3.Client { return c.client }

// Limited bounds a request to etcd by [Limit].
func Limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, Limit, errNoEtcd)
}

// Persist calls do until it succeeds or the context ends, and logs its errors.
func (c *connection) Persist(ctx context.Context, log *slog.Logger, what string, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		log.Warn(what, "error", c.explain(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(Retry):
		}
	}
}

// explain adds the reason of the last refused connection to the error of a request.
func (c *connection) explain(err error) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrUserNotFound) {
		return fmt.Errorf("%w: etcd refuses the certificate of this host (etcd.cert): give the node a role with 'berthd keys grant NODE', or find out who has thrown it out", err)
	}
	last := c.refused.Load()
	if err == nil || last == nil {
		return err
	}
	return fmt.Errorf("%w: no connection to etcd: %w: check the certificates, and the clocks of both hosts", err, *last)
}

// Close ends all watches.
func (c *connection) Close() error { return c.client.Close() }
