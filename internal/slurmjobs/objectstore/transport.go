package objectstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
)

// explain returns the error for a request that failed. The store may be anybody's, so its texts are
// quoted and shortened.
func (s *Store) explain(err error, bucket, key string) error {
	if errors.Is(err, errPinned) {
		return &Refused{fmt.Errorf("bucket %q: %w", bucket, errPinned)}
	}
	status, code, message := 0, "", ""
	if response := new(awshttp.ResponseError); errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	var answer smithy.APIError
	if errors.As(err, &answer) {
		code, message = answer.ErrorCode(), answer.ErrorMessage()
	}
	if status == 0 { // no answer
		if inner := new(net.OpError); errors.As(err, &inner) {
			err = inner
		}
		return &Away{s.url, err}
	}
	text := fmt.Sprintf("HTTP status %d, %.60q: %.200q", status, code, message)
	switch {
	case status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return &Away{s.url, errors.New(text)}
	case code == "NoSuchBucket":
		return &Refused{fmt.Errorf("the S3 store %s has no bucket %s: create it", s.url, bucket)}
	case code == "NoSuchKey" || code == "NotFound":
		return &Refused{fmt.Errorf("the S3 store %s has no object %q in bucket %s: upload it", s.url, key, bucket)}
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return &Refused{fmt.Errorf("the S3 store %s denies access to %q in bucket %s (%s): check accesskey and secretkey of the Secret, and what they may do in the bucket", s.url, key, bucket, text)}
	}
	return &Refused{fmt.Errorf("the S3 store %s refused the request for %q in bucket %s (%s)", s.url, key, bucket, text)}
}

// pause is the time between two requests to a store that is away.
const pause = 5 * time.Second

// gate keeps callers from waiting for a store that is away. After a request that failed, it lets one
// request through after each pause.
type gate struct {
	pause time.Duration

	mu     sync.Mutex
	away   error // of the last request
	until  time.Time
	trying bool
}

// pass calls send, unless the store is away.
func (g *gate) pass(ctx context.Context, send func() error) error {
	g.mu.Lock()
	alone := g.away != nil
	if alone && (g.trying || time.Now().Before(g.until)) {
		defer g.mu.Unlock()
		return g.away
	}
	g.trying = alone
	g.mu.Unlock()

	err := send()

	g.mu.Lock()
	defer g.mu.Unlock()
	if alone {
		g.trying = false
	}
	switch away := new(Away); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &away):
		g.away, g.until = away, time.Now().Add(g.pause)
	default:
		g.away = nil
	}
	return err
}

// pinned sends requests to one endpoint only.
type pinned struct {
	url string
	http.RoundTripper
}

func (p pinned) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme+"://"+request.URL.Host != p.url {
		return nil, errPinned
	}
	return p.RoundTripper.RoundTrip(request)
}

// newTransport returns a transport for one store. It keeps no idle connections.
func newTransport() http.RoundTripper {
	dialer := &net.Dialer{Timeout: connectTimeout}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: connectTimeout, MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return moving{conn, stallTimeout}, nil
		},
	}
}

// moving is a connection whose calls fail after the timeout without progress. A read waits while a
// large file is written, so a write extends its deadline, too.
type moving struct {
	net.Conn
	timeout time.Duration
}

func (m moving) Read(buffer []byte) (int, error) {
	if err := m.SetDeadline(time.Now().Add(m.timeout)); err != nil {
		return 0, err
	}
	return m.Conn.Read(buffer)
}

func (m moving) Write(buffer []byte) (int, error) {
	if err := m.SetDeadline(time.Now().Add(m.timeout)); err != nil {
		return 0, err
	}
	return m.Conn.Write(buffer)
}
