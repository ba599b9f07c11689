package lazy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// A registry cannot make the role connect to an address that pods may not reach:
// neither by its own address, nor by a redirect or a token service.
func TestRefusedAddresses(t *testing.T) {
	var came atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came.Add(1) }))
	defer inside.Close()
	r := newRemote(Source{URL: inside.URL}, loopback, nil)
	if _, err := r.read(t.Context(), 0, 1); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "pods may not reach 127.0.0.0/8") {
		t.Errorf("the registry itself: %v", err)
	}
	// Only the registry is reached through the proxy.
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"a redirect": func(w http.ResponseWriter, request *http.Request) {
			http.Redirect(w, request, inside.URL, http.StatusTemporaryRedirect)
		},
		"a token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, inside.URL))
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		proxy := httptest.NewServer(http.HandlerFunc(answer))
		r := newRemote(Source{URL: "http://registry.example/v2/app/blobs/x", Scope: "repository:app:pull"}, loopback, nil)
		through := r.client.Transport.(transport)
		through.proxy = func(request *http.Request) (*url.URL, error) {
			if request.URL.Host != "registry.example" {
				return nil, nil
			}
			return url.Parse(proxy.URL)
		}
		through.proxied.(*http.Transport).Proxy = through.proxy
		r.client.Transport = through
		if _, err := r.read(t.Context(), 0, 1); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v", name, err)
		}
		proxy.Close()
	}
	if n := came.Load(); n != 0 {
		t.Errorf("%d requests came to an address that is refused", n)
	}
}

// A token is requested again after a failed request, and after it expired early.
func TestTokensAreRenewed(t *testing.T) {
	want := corpus.Noise(1, 400000)
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"file": want}), 0, 0)
	given, failing := 0, false
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if failing {
			failing = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		given++
		fmt.Fprintf(w, `{"token":"t%d","expires_in":3600}`, given)
	}))
	t.Cleanup(tokens.Close)
	valid := 1
	r.onRequest(func(w http.ResponseWriter, request *http.Request) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if request.Header.Get("Authorization") == fmt.Sprint("Bearer t", valid) {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, tokens.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	// The next process requests its own token. The first request fails, and the
	// second token has expired when it is used.
	r.mu.Lock()
	failing, valid = true, 3
	r.mu.Unlock()
	_, image := open(t, path)
	if content, err := read(image, "file"); err != nil || !bytes.Equal(content, want) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if given != 3 {
		t.Errorf("%d tokens", given)
	}
}
