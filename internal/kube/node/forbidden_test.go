package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestForbiddenIsRetried(t *testing.T) {
	for name, c := range map[string]struct {
		method, path string
		forbidden    int // answers before the first that is not
		want, asked  int
	}{
		"token":         {"POST", "/api/v1/namespaces/a/serviceaccounts/default/token", 2, 200, 3},
		"secret":        {"GET", "/api/v1/namespaces/a/secrets/s", 1, 200, 2},
		"list":          {"GET", "/api/v1/namespaces/a/configmaps", 1, 200, 2},
		"volume":        {"GET", "/api/v1/persistentvolumes/v", 1, 200, 2},
		"really so":     {"GET", "/api/v1/namespaces/a/secrets/s", 100, 403, forbiddenTries},
		"another thing": {"GET", "/api/v1/nodes/n", 1, 403, 1},
		"no such thing": {"GET", "/api/v1/namespaces/a/secretsx/s", 1, 403, 1},
		"allowed":       {"GET", "/api/v1/namespaces/a/secrets/s", 0, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if b, _ := io.ReadAll(r.Body); r.Method == "POST" && string(b) != "body" {
					t.Errorf("request %d has body %q", asked, b)
				}
				if asked++; asked <= c.forbidden {
					w.WriteHeader(http.StatusForbidden)
				}
			}))
			defer server.Close()
			transport := awaitAuthorizer(http.DefaultTransport).(*authorizerWait)
			transport.pause = time.Microsecond
			request, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			reply, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			reply.Body.Close()
			if reply.StatusCode != c.want || asked != c.asked {
				t.Errorf("status %d after %d requests, want %d after %d", reply.StatusCode, asked, c.want, c.asked)
			}
		})
	}
}
