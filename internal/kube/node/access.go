package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

// access holds the clients of one identity for the API server, which starts at the same
// moment as the node. Components can use client at once: their requests wait at a gate
// until open has made a first request successfully. Without the gate, the first requests
// would fail, and the back-off of their senders (800 ms for an informer) would delay the
// start.
type access struct {
	client kubernetes.Interface
	early  kubernetes.Interface // passes the gate
	config *rest.Config
	gate   chan struct{}
}

func newAccess(kubeconfig string, wrap ...transport.WrapperFunc) (*access, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1 // APF at the server is the limit; a client-side one only delays
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.DisableCompression = true // no network in between
	for _, w := range wrap {
		config.Wrap(w)
	}

	a := &access{gate: make(chan struct{})}
	if a.early, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", kubeconfig, err)
	}
	a.config = rest.CopyConfig(config)
	a.config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &gated{next: next, gate: a.gate} })
	if a.client, err = kubernetes.NewForConfig(a.config); err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", kubeconfig, err)
	}
	return a, nil
}

// Times between two attempts of open: the first one, and the longest.
const (
	attemptFirst = 5 * time.Millisecond
	attemptMost  = 100 * time.Millisecond
	// attemptsEnd limits the time of all attempts. If the server has not admitted a
	// request by then, it probably answers, but refuses.
	attemptsEnd = 2 * time.Minute
)

// open calls attempt until it succeeds, and then opens the gate. After attemptsEnd, or when
// ctx ends, it returns the last error. It must not be called again after it has succeeded.
func (a *access) open(ctx context.Context, attempt func(context.Context, kubernetes.Interface) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attemptsEnd, errNoAnswer)
	defer cancel()
	for pause := attemptFirst; ; pause = min(pause*2, attemptMost) {
		err := attempt(ctx, a.early)
		if err == nil {
			close(a.gate)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

var errNoAnswer = errors.New("gave up after 2 minutes")

// opened blocks until the gate is open, and reports whether it is.
func (a *access) opened(ctx context.Context) bool {
	select {
	case <-a.gate:
		return true
	case <-ctx.Done():
		return false
	}
}

// gated holds requests back until the gate is open.
type gated struct {
	next http.RoundTripper
	gate <-chan struct{}
	only *regexp.Regexp // paths of the requests to hold back; all if nil
}

func (g *gated) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.only != nil && !g.only.MatchString(r.URL.Path) {
		return g.next.RoundTrip(r)
	}
	select {
	case <-g.gate:
		return g.next.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// WrappedRoundTripper lets client-go find the transport, to close its idle
// connections after failed heartbeats.
func (g *gated) WrappedRoundTripper() http.RoundTripper { return g.next }
