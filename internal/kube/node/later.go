package node

import (
	"net/http"
	"regexp"
	"time"

	"k8s.io/client-go/transport"
)

const (
	// laterAfterReady is the delay after the node is ready. The first pod can start in
	// that time.
	laterAfterReady = 500 * time.Millisecond
	// laterMost bounds the wait for a node that does not become ready. Its events, which
	// contain the reason, are sent after that.
	laterMost = 5 * time.Second
)

// holdBack delays requests of the kubelet that nobody waits for while the node
// starts: events, the lease (checked after 40 s), and the removal of resource
// slices of an earlier kubelet. These are some twenty requests, each of some
// milliseconds of CPU time that the control plane needs at that moment.
func holdBack(later <-chan struct{}) transport.WrapperFunc {
	laggards := regexp.MustCompile(`^/apis/(coordination|resource|events)\.k8s\.io/|^/api/v1/namespaces/[^/]+/events(/|$)`)
	return func(next http.RoundTripper) http.RoundTripper {
		return &gated{next: next, gate: later, only: laggards}
	}
}

// closeLater closes the channel a while after ready was closed.
func closeLater(later chan<- struct{}, ready, stop <-chan struct{}) {
	defer close(later)
	timeout := time.NewTimer(laterMost)
	defer timeout.Stop()
	select {
	case <-ready:
		timeout.Reset(laterAfterReady)
	case <-timeout.C:
		return
	case <-stop:
		return
	}
	select {
	case <-timeout.C:
	case <-stop:
	}
}
