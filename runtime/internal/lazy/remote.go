// Package lazy makes eStargz layers usable before they have arrived. Their table
// of contents lists the files, and content is requested from the registry when
// somebody reads it, chunk by chunk, each with its digest. The finished layer is
// like any other of package erofs.
//
// Any doubt at the beginning is an error, and the layer is then fetched as a
// whole. The package does not mount layers, and does not decide which layers are
// lazy.
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
	// URL is the blob's, Scope what a registry with tokens has to be asked for.
	URL   string `json:"url"`
	Scope string `json:"scope"`
	// Login names the login that the registry requires; empty for none. It is no
	// secret.
	Login string `json:"login,omitempty"`
	// Size is the blob's, in bytes.
	Size int64 `json:"size"`
}

// idleWithin bounds how long nothing comes of an answer. How long all of it takes
// is the line's: a chunk has four megabytes by default.
const idleWithin = time.Minute

var errIdle = fmt.Errorf("nothing came for %v", idleWithin)

// errRefused is of registries that have answered, and will not give.
var errRefused = errors.New("the registry refuses")

// remote asks a registry for parts of a blob.
type remote struct {
	Source
	client *http.Client
	// login is called whenever the registry requires a login.
	login func() (Login, error)

	mu         sync.Mutex
	authorizer docker.Authorizer
}

// newRemote returns one that connects to no address of the refused ranges.
func newRemote(source Source, refused []netip.Prefix, login func() (Login, error)) *remote {
	r := &remote{Source: source, client: &http.Client{Transport: newTransport(refused)}, login: login}
	r.renew(nil)
	return r
}

// authorized returns who authorizes requests.
func (r *remote) authorized() docker.Authorizer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.authorizer
}

// renew replaces an authorizer, unless somebody has done so: one remembers for
// ever that it got no token, and uses one for as long as it was said to last.
func (r *remote) renew(failed docker.Authorizer) docker.Authorizer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.authorizer == failed {
		r.authorizer = docker.NewDockerAuthorizer(docker.WithAuthClient(r.client), docker.WithAuthCreds(r.credentials))
	}
	return r.authorizer
}

// credentials returns the login for a host: for the registry's own, and not where it
// sends its clients.
func (r *remote) credentials(host string) (string, string, error) {
	own, err := url.Parse(r.URL)
	if err != nil || own.Host != host || r.login == nil {
		return "", "", err
	}
	login, err := r.login()
	return login.User, login.Secret, err
}

// read returns the bytes from one offset to before another.
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

// readEnd returns the last bytes, and notes the blob's size if it is not known. Not all
// registries know ranges that count from the end.
func (r *remote) readEnd(ctx context.Context, size int64) ([]byte, error) {
	if r.Size == 0 {
		_, total, err := r.get(ctx, "bytes=0-0", 1)
		if err == nil && total <= 0 {
			err = errors.New("its size is not said")
		}
		if err != nil {
			return nil, fmt.Errorf("ask for the size of %s: %w", r.URL, err)
		}
		r.Size = total
	}
	return r.read(ctx, max(0, r.Size-size), r.Size)
}

// get asks for a range. It returns the size of the whole as well.
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
		// A token may have ended before the first request, but not before the next.
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
		content, err := io.ReadAll(io.LimitReader(moving{answer.Body, idle}, limit+1))
		return content, total, err
	}
}

// moving puts a timer off when something is read.
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
