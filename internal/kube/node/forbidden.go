package node

import (
	"io"
	"net/http"
	"regexp"
	"time"
)

// awaitAuthorizer wraps the kubelet's transport. The Node authorizer lets a
// kubelet read the objects that its pods use, and learns of pods by its own
// watch. The kubelet's watch may be some milliseconds faster. Its requests are
// forbidden then, and it waits half a second before the next attempt. So
// awaitAuthorizer repeats a forbidden request for such an object a few times at
// once.
func awaitAuthorizer(next http.RoundTripper) http.RoundTripper {
	return &authorizerWait{next: next, pause: forbiddenPause, belongsToPod: regexp.MustCompile(
		`^/api/v1/(namespaces/[^/]+/(secrets|configmaps|persistentvolumeclaims|serviceaccounts)|persistentvolumes)(/|$)`)}
}

const (
	forbiddenPause = 4 * time.Millisecond // before the second attempt; doubles each time
	forbiddenTries = 6                    // with pauses of 124 ms in all
)

type authorizerWait struct {
	next         http.RoundTripper
	pause        time.Duration
	belongsToPod *regexp.Regexp
}

// RoundTrip sends r, and repeats it if it is forbidden and reads an object of a pod.
func (a *authorizerWait) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := a.next.RoundTrip(r)
	if err != nil || reply.StatusCode != http.StatusForbidden || !a.belongsToPod.MatchString(r.URL.Path) {
		return reply, err
	}
	for try, pause := 1, a.pause; try < forbiddenTries; try, pause = try+1, pause*2 {
		again := r.Clone(r.Context())
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return reply, nil
			}
			if again.Body, err = r.GetBody(); err != nil {
				return reply, nil
			}
		}
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return reply, nil
		}
		_, _ = io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
		if reply, err = a.next.RoundTrip(again); err != nil || reply.StatusCode != http.StatusForbidden {
			return reply, err
		}
	}
	return reply, nil
}

// WrappedRoundTripper lets client-go find the transport.
func (a *authorizerWait) WrappedRoundTripper() http.RoundTripper { return a.next }
