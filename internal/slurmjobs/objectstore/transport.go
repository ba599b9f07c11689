package objectstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
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
	if status == 0 { // no answer, or an incomplete one
		if sent := new(url.Error); errors.As(err, &sent) {
			err = sent.Err // url.Error itself is a net.Error
		}
		if inner := new(net.OpError); errors.As(err, &inner) {
			err = inner
		}
		if unreachable(err) {
			return &Away{s.url, err}
		}
		return s.failed(err.Error(), bucket, key)
	}
	text := fmt.Sprintf("HTTP status %d, %.60q: %.200q", status, code, message)
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return &Away{s.url, errors.New(text)}
	case status >= http.StatusInternalServerError: // perhaps for this bucket or object only
		return s.failed(text, bucket, key)
	case code == "NoSuchBucket":
		return &Refused{fmt.Errorf("the S3 store %s has no bucket %s: create it", s.url, bucket)}
	case code == "NoSuchKey" || code == "NotFound":
		return &Refused{fmt.Errorf("the S3 store %s has no object %q in bucket %s: upload it", s.url, key, bucket)}
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return &Refused{fmt.Errorf("the S3 store %s denies access to %q in bucket %s (%s): check accesskey and secretkey of the Secret, and what they may do in the bucket", s.url, key, bucket, text)}
	}
	return &Refused{fmt.Errorf("the S3 store %s refused the request for %q in bucket %s (%s)", s.url, key, bucket, text)}
}

// failed returns the error for a request after which other requests may succeed.
func (s *Store) failed(text, bucket, key string) error {
	return &Failed{fmt.Errorf("the request for %q in bucket %s of the S3 store %s failed (%.300s); berth tries again", key, bucket, s.url, text)}
}

// unreachable reports whether an error is one of the network or of TLS. It concerns all requests to
// a store.
func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.RecordHeaderError)) ||
		errors.Is(err, http.ErrSchemeMismatch)
}

// pause is the time between two requests to a store that is away.
const pause = 5 * time.Second

// gate keeps callers from waiting for a store that is away. After a request that failed, it lets one
// request through after each pause.
type gate struct {
	pause   time.Duration
	reading chan struct{} // holds one element while a Get runs

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
	case errors.As(err, new(*Failed)): // it may not have reached the store
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
	answer, err := p.RoundTripper.RoundTrip(request)
	if err == nil && (request.Method != http.MethodGet || answer.StatusCode/100 != 2) {
		// The library reads all of it, and keeps the text of an error in memory.
		answer.Body = bounded{io.LimitReader(answer.Body, maxAnswer), answer.Body}
	}
	return answer, err
}

// maxAnswer is the largest size in bytes of an answer that is no object.
const maxAnswer = 64 << 10

// bounded is the start of an answer's body.
type bounded struct {
	io.Reader
	io.Closer
}

// source is a file that is written. It remembers the first error of its reads.
type source struct {
	content io.ReadSeeker
	size    int64

	mu   sync.Mutex // the transport may read while a request that failed returns
	read int64      // the position in the file
	err  error
}

func (s *source) Read(buffer []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.content.Read(buffer)
	s.read += int64(n)
	if errors.Is(err, io.EOF) && s.read < s.size {
		err = errors.New("it became shorter while it was uploaded")
	}
	if err != nil && !errors.Is(err, io.EOF) && s.err == nil {
		s.err = err
	}
	return n, err
}

func (s *source) Seek(offset int64, whence int) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	position, err := s.content.Seek(offset, whence)
	if err == nil {
		s.read = position
	}
	return position, err
}

// failed returns the error of the first read that failed, or nil.
func (s *source) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
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
