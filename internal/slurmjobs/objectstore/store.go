// Package objectstore reads objects from S3 stores, and writes files into them. It talks only to
// the endpoints that the user of the process has permitted: whoever creates a BridgeJob names an
// endpoint. Which objects and files a job has belongs to package process.
package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Endpoints holds the endpoints of S3 stores that may be used.
type Endpoints struct {
	region string
	gates  map[string]*gate // by URL
}

// Key holds the credentials for a store.
type Key struct{ ID, Secret string }

// DefaultRegion is the region in signatures of requests to stores that have no regions.
const DefaultRegion = "us-east-1"

// New returns the endpoints with these URLs, such as https://s3.example.org. An empty region stands
// for DefaultRegion.
func New(urls []string, region string) (*Endpoints, error) {
	if region == "" {
		region = DefaultRegion
	}
	e := &Endpoints{region: region, gates: map[string]*gate{}}
	for _, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" ||
			strings.TrimSuffix(text, "/") != parsed.Scheme+"://"+parsed.Host {
			return nil, fmt.Errorf("--s3-endpoint %s: give the URL of an S3 store, such as https://s3.example.org or http://minio:9000", text)
		}
		e.gates[strings.TrimSuffix(text, "/")] = &gate{pause: pause, reading: make(chan struct{}, 1)}
	}
	return e, nil
}

// Store is an S3 store, and the credentials for it.
type Store struct {
	url    string
	client *s3.Client
	gate   *gate
	// timeout limits the time of a request, in addition to the time for the file that it writes.
	timeout time.Duration
}

// Open returns the store at an endpoint, which is a host name with an optional port, such as
// minio:9000. secure selects HTTPS. Open returns a *Refused if the endpoint is not permitted.
func (e *Endpoints) Open(endpoint string, secure bool, key Key) (*Store, error) {
	location := "http://" + endpoint
	if secure {
		location = "https://" + endpoint
	}
	gate := e.gates[location]
	if gate == nil {
		all := "none"
		if len(e.gates) > 0 {
			all = strings.Join(e.URLs(), ", ")
		}
		return nil, &Refused{fmt.Errorf("spec.s3storage names the S3 store %q, and permitted are %s: name one of them, with secure: true for https and secure: false for http, or start berth with --s3-endpoint %s",
			location, all, location)}
	}
	client := s3.New(s3.Options{
		BaseEndpoint: &location, Region: e.region, UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: key.ID, SecretAccessKey: key.Secret}, nil
		}),
		HTTPClient: &http.Client{
			Transport: pinned{location, newTransport()},
			// A redirection could lead to a host that is not permitted.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		// Package controller tries again.
		Retryer: aws.NopRetryer{},
		// Many stores do not know the checksums that the library adds otherwise.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired, ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		DisableS3ExpressSessionAuth: aws.Bool(true), DisableMultiRegionAccessPoints: true,
	})
	return &Store{url: location, client: client, gate: gate, timeout: requestTimeout}, nil
}

// URLs returns the permitted endpoints.
func (e *Endpoints) URLs() []string {
	var urls []string
	for location := range e.gates {
		urls = append(urls, location)
	}
	slices.Sort(urls)
	return urls
}

// Times after which a store that does not answer counts as away.
const (
	connectTimeout = 5 * time.Second
	requestTimeout = 20 * time.Second
	// stallTimeout limits the time without progress of a request.
	stallTimeout = time.Minute
	// slowest is the lowest rate of a file that is written, in bytes per second.
	slowest = 256 << 10
	// turnTimeout limits the time that Get waits for another Get. It is long enough for the few
	// callers of a store that answers, and short for callers of other stores.
	turnTimeout = 100 * time.Millisecond
)

// MaxFile is the largest file in bytes that one request writes.
const MaxFile = 5 << 30

// maxName is the largest length of the name of a bucket, in bytes.
const maxName = 255

// validBucket reports whether a bucket has a name that the library treats in no special way, unlike
// the names of access points.
func validBucket(name string) bool {
	return name != "" && len(name) <= maxName && strings.Trim(name, ".-_") != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}

// check returns a *Refused if a bucket or a key has no valid name.
func check(bucket, key string) error {
	if !validBucket(bucket) {
		return &Refused{fmt.Errorf("%.300q is no name of a bucket", bucket)}
	}
	if key == "" || len(key) > 1024 {
		return &Refused{fmt.Errorf("%.300q is no name of an object: give 1 to 1024 bytes", key)}
	}
	return nil
}

// Get returns the content of an object of at most limit bytes. The error is a *Refused if another
// call would give the same result, an *Away if the store does not answer, and otherwise a *Failed.
// A slow store holds up one caller: Get fails while another Get waits for the same store.
func (s *Store) Get(ctx context.Context, bucket, key string, limit int64) ([]byte, error) {
	if err := check(bucket, key); err != nil {
		return nil, err
	}
	select {
	case s.gate.reading <- struct{}{}:
		defer func() { <-s.gate.reading }()
	case <-time.After(turnTimeout):
		return nil, &Failed{fmt.Errorf("the S3 store %s has not answered an earlier request yet; berth tries again", s.url)}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var content []byte
	err := s.gate.pass(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		output, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			return s.explain(err, bucket, key)
		}
		defer output.Body.Close()
		content, err = io.ReadAll(io.LimitReader(output.Body, limit+1))
		if err != nil {
			return s.explain(err, bucket, key)
		}
		if int64(len(content)) > limit {
			return &Refused{fmt.Errorf("it is larger than %d bytes", limit)}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// Put writes an object with size bytes of content, at most MaxFile. The errors are the same as for
// Get.
func (s *Store) Put(ctx context.Context, bucket, key string, content io.ReadSeeker, size int64) error {
	if err := check(bucket, key); err != nil {
		return err
	}
	return s.gate.pass(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, s.timeout+time.Duration(size/slowest)*time.Second)
		defer cancel()
		body := &source{content: content, size: size}
		_, err := s.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: body, ContentLength: &size})
		if readErr := body.failed(); err != nil && readErr != nil {
			return &Failed{fmt.Errorf("read the file: %w", readErr)}
		}
		if err != nil {
			return s.explain(err, bucket, key)
		}
		return nil
	})
}

// Refused wraps the error for a request that is not permitted, or that the store refused.
type Refused struct{ error }

// Unwrap returns the wrapped error.
func (r *Refused) Unwrap() error { return r.error }

// Failed wraps the error for a request that failed, which says nothing about the store's other
// objects and users.
type Failed struct{ error }

// Unwrap returns the wrapped error.
func (f *Failed) Unwrap() error { return f.error }

// Away is the error for a store that does not answer, or answers that it is not available.
type Away struct {
	url string
	err error
}

func (a *Away) Error() string {
	return fmt.Sprintf("the S3 store %s is away: %v; berth tries again", a.url, a.err)
}

// Unwrap returns the wrapped error.
func (a *Away) Unwrap() error { return a.err }

// errPinned is the error for a request to another host than that of the endpoint.
var errPinned = errors.New("the request leads to another host")
