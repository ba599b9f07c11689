package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// Source is the place of a layer's blob.
type Source struct {
	// URL is the address of the blob, and Scope the scope of tokens for it.
	URL   string `json:"url"`
	Scope string `json:"scope"`
	// Login names the login that the registry requires; empty for none. It is no
	// secret.
	Login string `json:"login,omitempty"`
	// Size is the size of the blob in bytes.
	Size int64 `json:"size"`
}

// idleWithin bounds the time without progress of a response. The whole response has no
// timeout, because its duration depends on the connection.
const idleWithin = time.Minute

var errIdle = fmt.Errorf("nothing came for %v", idleWithin)

// errRefused is wrapped by the error if a registry refuses a request, so that repeating the
// request is useless.
var errRefused = errors.New("the registry refuses")

// remote requests parts of a blob from a registry.
type remote struct {
	Source
	client *http.Client
	// login is called whenever the registry requires a login.
	login func() (Login, error)

	mu         sync.Mutex
	authorizer docker.Authorizer
}

// newRemote returns a remote that connects to no address in the refused ranges.
func newRemote(source Source, refused []netip.Prefix, login func() (Login, error)) *remote {
	r := &remote{Source: source, client: &http.Client{Transport: newTransport(refused)}, login: login}
	r.renew(nil)
	return r
}

// authorized returns the current authorizer of requests.
func (r *remote) authorized() docker.Authorizer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.authorizer
}

// renew replaces a failed authorizer, unless another goroutine has replaced it. An
// authorizer never requests a token again after a failure, and uses a token until
// its stated expiry, even if the registry refuses it earlier.
func (r *remote) renew(failed docker.Authorizer) docker.Authorizer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.authorizer == failed {
		r.authorizer = docker.NewDockerAuthorizer(docker.WithAuthClient(r.client), docker.WithAuthCreds(r.credentials))
	}
	return r.authorizer
}

// credentials returns the login for a host. Only the registry's host gets it, not the
// hosts that the registry redirects to.
func (r *remote) credentials(host string) (string, string, error) {
	own, err := url.Parse(r.URL)
	if err != nil || own.Host != host || r.login == nil {
		return "", "", err
	}
	login, err := r.login()
	return login.User, login.Secret, err
}

// read returns the bytes at offsets from (included) to to (excluded).
func (r *remote) read(ctx context.Context, from, to int64) ([]byte, error) {
	content, _, err := r.get(ctx, fmt.Sprintf("bytes=%d-%d", from, to-1), to-from)
	if err == nil && int64(len(content)) != to-from {
		err = fmt.Errorf("%d bytes came", len(content))
	}
	if err != nil {
		return nil, fmt.Errorf("read %d bytes at %d of %s: %w", to-from, from, r.URL, err)
	}
	return content, nil
}

// readEnd returns the last size bytes of the blob, or all of a smaller one. It sets the
// blob's size if that is not known, because not all registries support ranges that count
// from the end.
func (r *remote) readEnd(ctx context.Context, size int64) ([]byte, error) {
	if r.Size == 0 {
		_, total, err := r.get(ctx, "bytes=0-0", 1)
		if err == nil && total <= 0 {
			err = errors.New("the registry does not state it")
		}
		if err != nil {
			return nil, fmt.Errorf("ask for the size of %s: %w", r.URL, err)
		}
		r.Size = total
	}
	return r.read(ctx, max(0, r.Size-size), r.Size)
}

// get requests a range, such as bytes=0-99, and reads at most one byte more than limit. It
// also returns the size of the whole blob, or 0 if the registry does not state it.
func (r *remote) get(ctx context.Context, bytes string, limit int64) (content []byte, size int64, err error) {
	ctx, cancel := context.WithCancelCause(docker.WithScope(ctx, r.Scope))
	defer cancel(nil)
	idle := time.AfterFunc(idleWithin, func() { cancel(errIdle) })
	defer idle.Stop()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errIdle) && !errors.Is(err, errIdle) {
			err = errors.Join(errIdle, err)
		}
	}()
	for asked := 0; ; asked++ {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
		if err != nil {
			return nil, 0, err
		}
		request.Header.Set("Range", bytes)
		authorizer := r.authorized()
		if err := authorizer.Authorize(ctx, request); err != nil {
			r.renew(authorizer)
			return nil, 0, err
		}
		idle.Reset(idleWithin)
		answer, err := r.client.Do(request)
		if err != nil {
			return nil, 0, err
		}
		idle.Reset(idleWithin)
		// A token may expire before the first attempt, but not again before the next one.
		if answer.StatusCode == http.StatusUnauthorized && asked < 2 {
			answer.Body.Close()
			if request.Header.Get("Authorization") != "" {
				authorizer = r.renew(authorizer)
			}
			if err := authorizer.AddResponses(ctx, []*http.Response{answer}); err != nil {
				return nil, 0, errors.Join(errRefused, err)
			}
			continue
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusPartialContent {
			err := fmt.Errorf("the answer is %s", answer.Status)
			if answer.StatusCode < 500 && answer.StatusCode != http.StatusTooManyRequests {
				err = errors.Join(errRefused, err)
			}
			return nil, 0, err
		}
		_, text, _ := strings.Cut(answer.Header.Get("Content-Range"), "/")
		total, _ := strconv.ParseInt(text, 10, 64)
		if r.Size > 0 && total > 0 && total != r.Size {
			return nil, 0, fmt.Errorf("%w: it says that the layer has %d bytes, and the image says %d", errRefused, total, r.Size)
		}
		content, err := io.ReadAll(io.LimitReader(moving{answer.Body, idle}, limit+1))
		return content, total, err
	}
}

// moving resets a timer whenever bytes are read.
type moving struct {
	from  io.Reader
	timer *time.Timer
}

func (m moving) Read(p []byte) (int, error) {
	n, err := m.from.Read(p)
	if n > 0 {
		m.timer.Reset(idleWithin)
	}
	return n, err
}
