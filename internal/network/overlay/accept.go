package overlay

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// maxStreams limits the incoming streams, including unauthenticated ones.
const maxStreams = 1024

// acceptStreams accepts the streams of other nodes until ctx ends, and returns nil when
// all of them have ended.
func (o *Overlay) acceptStreams(ctx context.Context) error {
	streams, streamsCtx := errgroup.WithContext(ctx)
	streams.SetLimit(maxStreams)
	stop := context.AfterFunc(ctx, func() { o.listen.Close() })
	defer stop()
	defer o.listen.Close()
	for {
		conn, err := o.listen.AcceptTCP()
		if err != nil && ctx.Err() == nil {
			// Temporary, for example too many open files.
			o.log.Warn("cannot accept a stream of another node", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		if ctx.Err() != nil {
			if conn != nil {
				conn.Close()
			}
			break
		}
		if err != nil {
			continue
		}
		if !streams.TryGo(func() error { o.takeStream(streamsCtx, conn); return nil }) {
			conn.Close()
		}
	}
	if err := streams.Wait(); err != nil {
		return fmt.Errorf("accept streams of other nodes: %w", err)
	}
	return nil
}

// takeStream delivers the packets of a connection, and closes it. It closes connections
// from other hosts at once.
func (o *Overlay) takeStream(ctx context.Context, conn *net.TCPConn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	if !o.isOfNode(conn) {
		o.counts[0].foreign.Add(1)
		return
	}
	if err := o.receiveStream(conn); ctx.Err() == nil {
		o.log.Debug("a stream of another node ended", "from", conn.RemoteAddr(), "error", err)
	}
}

// isOfNode reports whether a connection comes from the host of another node.
func (o *Overlay) isOfNode(conn net.Conn) bool {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	return ok && slices.ContainsFunc(o.table.Load().peers, func(p *peer) bool {
		return p != nil && p.isAt(remote.AddrPort().Addr())
	})
}
