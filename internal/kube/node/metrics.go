package node

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/metrics"
)

// metricsLimit bounds one request for the node's page.
const metricsLimit = 5 * time.Second

// serveMetrics serves the node's page at its address inside the cluster until
// ctx ends. The page comes from the supervisor, because only the supervisor sees
// all parts of the node. It holds numbers and no secrets, and pods may read it,
// like CoreDNS's page. Clients outside reach it through the API server.
func serveMetrics(ctx context.Context, plan cluster.Plan, log *slog.Logger) {
	address := netip.AddrPortFrom(plan.Addresses.Node, metrics.Port)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address.String())
	if err != nil {
		log.Warn("Nobody can read the node's metrics", "error", err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		page, err := linux.DialIn(r.Context(), plan.Paths.Scratch, metrics.Socket)
		if err != nil {
			http.Error(w, "the node's supervisor does not answer", http.StatusServiceUnavailable)
			return
		}
		defer page.Close()
		_ = page.SetDeadline(time.Now().Add(metricsLimit)) // a socket has one
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.Copy(w, page) // one of both is gone
	})
	server := &http.Server{Handler: mux, ReadTimeout: metricsLimit, IdleTimeout: 2 * time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		log.Warn("Nobody can read the node's metrics any more", "error", err)
	}
}
