package berthd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
)

// metrics counts events of this node, and serves the counts to Prometheus.
type metrics struct {
	// pods returns the number of pods here, of jobs and of sessions.
	pods func() (jobs, sessions int)
	// etcdUp reports whether etcd has answered the last request.
	etcdUp atomic.Bool
	log    *slog.Logger

	mu sync.Mutex
	// attaches counts new pods by the time that they took, in the buckets below.
	attaches [len(attachBuckets) + 1]uint64
	// seconds is the sum of these times.
	seconds float64
	// refused counts jobs and sessions without a network, and failures the failures to apply
	// the state of this node.
	refused  uint64
	failures uint64
	// flowsRefused counts packets of connections above policy.flows.
	flowsRefused uint64
}

// metricsTimeout bounds how long a client may take to ask, and to read the answer.
const metricsTimeout = 3 * time.Second

// attachBuckets holds the upper bounds of the histogram's buckets, in seconds.
var attachBuckets = [...]float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15}

func (m *metrics) attached(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := 0
	for i < len(attachBuckets) && took.Seconds() > attachBuckets[i] {
		i++
	}
	m.attaches[i]++
	m.seconds += took.Seconds()
}

func (m *metrics) refuse()                 { m.mu.Lock(); m.refused++; m.mu.Unlock() }
func (m *metrics) refuseFlows(more uint64) { m.mu.Lock(); m.flowsRefused += more; m.mu.Unlock() }
func (m *metrics) fail()                   { m.mu.Lock(); m.failures++; m.mu.Unlock() }

// write writes all series in the text format of Prometheus.
func (m *metrics) write(w io.Writer) error {
	jobs, sessions := m.pods()
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	family := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP berthd_%s %s\n# TYPE berthd_%[1]s %[3]s\n", name, help, kind)
	}
	family("pods", "gauge", "Pods on this node.")
	fmt.Fprintf(&b, "berthd_pods{kind=\"job\"} %d\nberthd_pods{kind=\"login\"} %d\n", jobs, sessions)
	family("etcd_up", "gauge", "Whether etcd has answered when it was asked last.")
	up := 0
	if m.etcdUp.Load() {
		up = 1
	}
	fmt.Fprintf(&b, "berthd_etcd_up %d\n", up)
	family("refused_total", "counter", "Jobs and sessions that got no network here.")
	fmt.Fprintf(&b, "berthd_refused_total %d\n", m.refused)
	family("flows_refused_total", "counter", "Packets of connections above policy.flows that were refused.")
	fmt.Fprintf(&b, "berthd_flows_refused_total %d\n", m.flowsRefused)
	family("apply_failures_total", "counter", "How often the network of this node could not be made as it should be.")
	fmt.Fprintf(&b, "berthd_apply_failures_total %d\n", m.failures)
	family("attach_seconds", "histogram", "How long pods took that were made, from the question to the network.")
	count := uint64(0)
	for i, bound := range attachBuckets {
		count += m.attaches[i]
		fmt.Fprintf(&b, "berthd_attach_seconds_bucket{le=\"%g\"} %d\n", bound, count)
	}
	count += m.attaches[len(attachBuckets)]
	fmt.Fprintf(&b, "berthd_attach_seconds_bucket{le=\"+Inf\"} %d\nberthd_attach_seconds_sum %g\nberthd_attach_seconds_count %[1]d\n", count, m.seconds)
	_, err := io.WriteString(w, b.String())
	return err
}

// serve serves the metrics until the context ends. Any user can occupy a port above
// 1023. serve then logs the error and tries again; networks do not depend on the metrics.
func (m *metrics) serve(ctx context.Context, address string) error {
	said := ""
	for {
		err := m.serveOnce(ctx, address)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if err.Error() != said {
			said = err.Error()
			m.log.Error("serve metrics", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(store.Retry):
		}
	}
}

func (m *metrics) serveOnce(ctx context.Context, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w: correct 'metrics' in the configuration, or end who has the port", err)
	}
	server := &http.Server{Handler: m, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP implements [http.Handler].
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	// An error means that the client has gone.
	_ = m.write(w)
}
