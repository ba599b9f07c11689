package node

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestOnlyLaggardsAreHeldBack(t *testing.T) {
	for path, held := range map[string]bool{
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1": true,
		"/apis/resource.k8s.io/v1/resourceslices":                           true,
		"/api/v1/namespaces/default/events":                                 true,
		"/apis/events.k8s.io/v1/namespaces/default/events/e":                true,
		"/api/v1/nodes":                       false,
		"/apis/storage.k8s.io/v1/csinodes/n1": false,
		"/api/v1/namespaces/events/secrets/s": false,
		"/api/v1/namespaces/a/pods/events":    false,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer server.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a request that is held back ends at once, one that is sent as well, with another error
		later := make(chan struct{})
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if held {
			request = request.WithContext(ctx)
		}
		reply, err := holdBack(later)(http.DefaultTransport).RoundTrip(request)
		if held != (err != nil) {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			reply.Body.Close()
		}
	}
}

func TestLaterComesAfterReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later, ready, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
		start := time.Now()
		go closeLater(later, ready, stop)
		time.Sleep(time.Second)
		close(ready)
		<-later
		if got := time.Since(start); got != time.Second+laterAfterReady {
			t.Errorf("came after %v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		later, ready, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
		start := time.Now()
		go closeLater(later, ready, stop)
		<-later
		if got := time.Since(start); got != laterMost {
			t.Errorf("without a node that is ready it came after %v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		later, ready, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
		close(stop)
		closeLater(later, ready, stop)
		<-later
	})
}
