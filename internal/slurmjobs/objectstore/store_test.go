package objectstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

// open returns the store of a test server.
func open(t testing.TB, address string, key Key) *Store {
	t.Helper()
	endpoints, err := New([]string{"http://" + address}, "")
	if err != nil {
		t.Fatal(err)
	}
	store, err := endpoints.Open(address, false, key)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

var testKey = Key{testutil.S3AccessKey, testutil.S3SecretKey}

func TestScriptFromServer(t *testing.T) {
	server := testutil.NewS3Server(t)
	store := open(t, server.Address, testKey)
	script := "#!/bin/sh\necho 'a \"quoted\" Füße'\n"
	for _, name := range []string{"run.sh", "a folder/Füße+%20?#&.sh"} {
		server.Write("scripts", name, script)
		content, err := store.Get(t.Context(), "scripts", name, 100)
		if err != nil || string(content) != script {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
	server.Write("scripts", "empty", "")
	if content, err := store.Get(t.Context(), "scripts", "empty", 100); err != nil || len(content) != 0 {
		t.Errorf("%q, %v", content, err)
	}
	large := strings.Repeat("x", 100)
	server.Write("scripts", "large", large)
	if content, err := store.Get(t.Context(), "scripts", "large", 100); err != nil || string(content) != large {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := store.Get(t.Context(), "scripts", "large", 99); !errors.As(err, new(*Refused)) || err.Error() != "it is larger than 99 bytes" {
		t.Error(err)
	}
}

// TestRefusals checks the messages for requests that the server refuses.
func TestRefusals(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("scripts", "run.sh", "#!/bin/sh\n")
	url := "the S3 store http://" + server.Address
	for _, test := range []struct {
		key          Key
		bucket, name string
		want         string
	}{
		{testKey, "nowhere", "run.sh", url + " has no bucket nowhere: create it"},
		{testKey, "scripts", "none.sh", url + ` has no object "none.sh" in bucket scripts: upload it`},
		{Key{testutil.S3AccessKey, "wrong"}, "scripts", "run.sh", url + ` denies access to "run.sh" in bucket scripts (HTTP status 403, "SignatureDoesNotMatch"`},
		{Key{"wrong", "wrong"}, "scripts", "run.sh", url + ` refused the request for "run.sh" in bucket scripts (HTTP status 404, "XAdminUserNotFound"`},
		{testKey, "scripts", "", `"" is no name of an object`},
		{testKey, "arn:aws:s3:us-east-1:123456789012:accesspoint/x", "a", "is no name of a bucket"},
		{testKey, "../scripts", "a", "is no name of a bucket"},
		{testKey, "..", "a", "is no name of a bucket"},
	} {
		store := open(t, server.Address, test.key)
		_, err := store.Get(t.Context(), test.bucket, test.name, 100)
		if !errors.As(err, new(*Refused)) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v", test, err)
		}
	}
	store := open(t, server.Address, testKey)
	if err := store.Put(t.Context(), "nowhere", "a", strings.NewReader("x"), 1); !errors.As(err, new(*Refused)) || !strings.Contains(err.Error(), "has no bucket nowhere: create it") {
		t.Error(err)
	}
}

func TestFileToServer(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("results", "other", "")
	store := open(t, server.Address, testKey)
	content := make([]byte, 9<<20)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, len(content)} {
		for range 2 { // again, with the same result
			if err := store.Put(t.Context(), "results", "job/out file", bytes.NewReader(content[:size]), int64(size)); err != nil {
				t.Fatal(err)
			}
		}
		if got := server.Read("results", "job/out file"); got != string(content[:size]) {
			t.Errorf("got %d bytes, want %d", len(got), size)
		}
	}
}

// TestServerAway: the server is away when a request begins, and comes back. Requests do not wait
// for it meanwhile.
func TestServerAway(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("scripts", "run.sh", "#!/bin/sh\n")
	store := open(t, server.Address, testKey)
	store.gate.pause = 20 * time.Millisecond
	get := func() error {
		_, err := store.Get(t.Context(), "scripts", "run.sh", 100)
		return err
	}
	server.Kill()
	for range 3 {
		err := get()
		if !errors.As(err, new(*Away)) || !strings.HasPrefix(err.Error(), "the S3 store http://"+server.Address+" is away: ") || !strings.Contains(err.Error(), "connection refused") {
			t.Error(err)
		}
	}
	server.Start()
	testutil.Await(t, 30*time.Second, "get", get)
}

// TestGate: while one request waits for a store that was away, the others fail at once.
func TestGate(t *testing.T) {
	g := &gate{}
	away := &Away{"u", errors.New("away")}
	if err := g.pass(t.Context(), func() error { return away }); !errors.Is(err, away) {
		t.Error(err)
	}
	trying, answer, done := make(chan bool), make(chan error), make(chan error)
	go func() {
		done <- g.pass(t.Context(), func() error { trying <- true; return <-answer })
	}()
	<-trying
	fails := func() error { return errors.New("the request was sent") }
	if err := g.pass(t.Context(), fails); !errors.Is(err, away.err) {
		t.Error(err)
	}
	answer <- nil
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := g.pass(t.Context(), func() error { return nil }); err != nil {
		t.Error(err)
	}
	// A request that its caller cancels says nothing about the store.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.pass(ctx, func() error { return away }); !errors.Is(err, context.Canceled) || g.away != nil {
		t.Error(err, g.away)
	}
}

// TestAnswers: the answers of a server that versitygw does not give. A redirection is not followed.
func TestAnswers(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirection was followed") }))
	t.Cleanup(other.Close)
	for _, test := range []struct {
		status int
		body   string
		away   bool
		want   string
	}{
		{503, "<Error><Code>SlowDown</Code><Message>Please reduce</Message></Error>", true, `is away: HTTP status 503, "SlowDown": "Please reduce"`},
		{500, "<Error><Code>InternalError</Code></Error>", false, `failed (HTTP status 500, "InternalError"`},
		{502, "<html>", false, "failed (HTTP status 502"},
		{429, "", true, "is away: HTTP status 429"},
		{307, "", false, "refused the request"}, {302, "", false, "refused the request"}, {301, "", false, "refused the request"},
		{404, "not XML", false, `has no object "o"`},
		{404, "<Error><Code>NoSuchKey</Code></Error>", false, `has no object "o"`},
		{401, "", false, "denies access"},
		{400, "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting 'eu-1'" + strings.Repeat("x", 4<<10) + "</Message></Error>", false, `"AuthorizationHeaderMalformed": "expecting 'eu-1'`},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Location", other.URL)
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		}))
		store := open(t, server.Listener.Addr().String(), testKey)
		_, getErr := store.Get(t.Context(), "bucket", "o", 100)
		putErr := open(t, server.Listener.Addr().String(), testKey).Put(t.Context(), "bucket", "o", strings.NewReader("x"), 1)
		for _, err := range []error{getErr, putErr} {
			if err == nil || errors.As(err, new(*Away)) != test.away || errors.As(err, new(*Failed)) != (test.status/100 == 5 && !test.away) || errors.As(err, new(*Refused)) != (test.status/100 < 5 && !test.away) || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 600 {
				t.Errorf("%d: got %.700v", test.status, err)
			}
		}
		server.Close()
	}
}

// TestBrokenAnswer: an incomplete script is no script.
func TestBrokenAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "#!/bin/sh\n")
	}))
	t.Cleanup(server.Close)
	content, err := open(t, server.Listener.Addr().String(), testKey).Get(t.Context(), "bucket", "o", 1000)
	if content != nil || !errors.As(err, new(*Failed)) {
		t.Errorf("got %q, %v", content, err)
	}
}

// TestOwnErrors: an error on this side concerns one request, and the store is not away for others.
func TestOwnErrors(t *testing.T) {
	server := testutil.NewS3Server(t)
	server.Write("scripts", "run.sh", "#!/bin/sh\n")
	store := open(t, server.Address, testKey)
	broken := *store
	broken.client = open(t, server.Address, Key{"a\nb", "c"}).client
	_, err := broken.Get(t.Context(), "scripts", "run.sh", 100)
	if !errors.As(err, new(*Failed)) || !strings.Contains(err.Error(), "invalid header field value") {
		t.Error(err)
	}
	err = store.Put(t.Context(), "scripts", "short", strings.NewReader("short"), 100)
	if !errors.As(err, new(*Failed)) || err.Error() != "read the file: it became shorter while it was uploaded" {
		t.Error(err)
	}
	if _, err := store.Get(t.Context(), "scripts", "run.sh", 100); err != nil {
		t.Error(err)
	}
	// It does not mean either that a store is back.
	server.Kill()
	store.gate.pause = time.Hour
	if _, err := store.Get(t.Context(), "scripts", "run.sh", 100); !errors.As(err, new(*Away)) {
		t.Error(err)
	}
	store.gate.until = time.Now()
	if err := store.Put(t.Context(), "scripts", "short", strings.NewReader("short"), 100); !errors.As(err, new(*Failed)) {
		t.Error(err)
	}
	if store.gate.away == nil || store.gate.trying {
		t.Errorf("%+v", store.gate)
	}
	server.Start()
}

// TestTLSErrors: a store without a valid certificate, or without TLS, is away.
func TestTLSErrors(t *testing.T) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, server := range map[string]*httptest.Server{"certificate": httptest.NewUnstartedServer(nothing), "plain": httptest.NewUnstartedServer(nothing)} {
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		if name == "certificate" {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		address := server.Listener.Addr().String()
		endpoints, err := New([]string{"https://" + address}, "")
		if err != nil {
			t.Fatal(err)
		}
		store, err := endpoints.Open(address, true, testKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Get(t.Context(), "bucket", "o", 100); !errors.As(err, new(*Away)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEndlessAnswers: of an answer that is no object, only the start is read.
func TestEndlessAnswers(t *testing.T) {
	const all = 64 << 20 // far more than the kernel's buffers hold
	for _, status := range []int{404, 500, 200} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			block := bytes.Repeat([]byte("x"), 64<<10)
			sent := 0
			for sent < all {
				n, err := w.Write(block)
				if sent += n; err != nil {
					return
				}
			}
			t.Errorf("%s, status %d: everything was read", r.Method, status)
		}))
		store := open(t, server.Listener.Addr().String(), testKey)
		_, getErr := store.Get(t.Context(), "bucket", "o", 100)
		putErr := store.Put(t.Context(), "bucket", "o", strings.NewReader("x"), 1)
		if getErr == nil || (putErr == nil) != (status == 200) {
			t.Errorf("status %d: %v, %v", status, getErr, putErr)
		}
		server.Close()
	}
}

// TestSlowAnswers: an answer that makes progress ends, too. Only one Get waits for it.
func TestSlowAnswers(t *testing.T) {
	begun, release := make(chan struct{}, 2), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		begun <- struct{}{}
		<-release
	}))
	t.Cleanup(server.Close)
	store := open(t, server.Listener.Addr().String(), testKey)
	first := make(chan error)
	get := func() error {
		_, err := store.Get(t.Context(), "bucket", "o", 100)
		return err
	}
	go func() { first <- get() }()
	<-begun
	if err := get(); !errors.As(err, new(*Failed)) || !strings.Contains(err.Error(), "has not answered an earlier request yet") {
		t.Error(err)
	}
	short := *store
	short.timeout = 50 * time.Millisecond
	if err := short.Put(t.Context(), "bucket", "o", strings.NewReader("x"), 1); !errors.As(err, new(*Away)) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := get(); err != nil {
		t.Error(err)
	}
}

// TestStalled: a connection without progress ends, also while a file is written.
func TestStalled(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	testutil.Serve(t, listener, func(conn net.Conn) { <-t.Context().Done() })
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	slow := moving{conn, 50 * time.Millisecond}
	read := make(chan error)
	go func() {
		_, err := slow.Read(make([]byte, 1))
		read <- err
	}()
	var writeErr error
	for writeErr == nil {
		_, writeErr = slow.Write(make([]byte, 1<<20))
	}
	for _, err := range []error{writeErr, <-read} {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	}
}

// TestOnlyPermittedEndpoints: an object reaches no other host, port or scheme.
func TestOnlyPermittedEndpoints(t *testing.T) {
	endpoints, err := New([]string{"http://minio:9000", "https://s3.example.org/"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for endpoint, secure := range map[string]bool{"minio:9000": false, "s3.example.org": true} {
		if _, err := endpoints.Open(endpoint, secure, testKey); err != nil {
			t.Error(err)
		}
		_, err := endpoints.Open(endpoint, !secure, testKey)
		if !errors.As(err, new(*Refused)) || !strings.Contains(err.Error(), "permitted are http://minio:9000, https://s3.example.org: ") {
			t.Error(err)
		}
	}
	for _, endpoint := range []string{
		"", "minio", "minio:9001", "minio:9000/", "minio:9000/x", "x@minio:9000", "minio:9000@evil", "minio:9000#@evil", "minio:9000.evil", "http://minio:9000", "MINIO:9000", "minio:9000\n", "127.0.0.1:9000",
	} {
		if _, err := endpoints.Open(endpoint, false, testKey); !errors.As(err, new(*Refused)) {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	request, err := http.NewRequest(http.MethodGet, "http://x.minio:9000/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (pinned{"http://minio:9000", http.DefaultTransport}).RoundTrip(request); !errors.Is(err, errPinned) {
		t.Error(err)
	}
	for _, url := range []string{"", "minio:9000", "ftp://minio", "http://", "http://minio/path", "http://user@minio", "http://minio?x", "http://minio#x", " http://minio"} {
		if _, err := New([]string{url}, ""); err == nil {
			t.Errorf("%q is permitted", url)
		}
	}
	none, err := New(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Open("minio:9000", false, testKey); err == nil || !strings.HasSuffix(err.Error(), "or start berth with --s3-endpoint http://minio:9000") {
		t.Error(err)
	}
}

// TestSpecialBuckets: names of buckets that the library treats in a special way lead to the same
// host.
func TestSpecialBuckets(t *testing.T) {
	var hosts []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts = append(hosts, r.Host+r.URL.Path) }))
	t.Cleanup(server.Close)
	store := open(t, server.Listener.Addr().String(), testKey)
	for _, bucket := range []string{"a--usw2-az1--x-s3", "a--op-s3", "a.b", "UPPER_case", "a--beta--x-s3", "a-s3alias", "a--ol-s3"} {
		hosts = nil
		_, err := store.Get(t.Context(), bucket, "o", 100)
		if want := fmt.Sprintf("%s/%s/o", server.Listener.Addr(), bucket); len(hosts) > 1 || len(hosts) == 1 && hosts[0] != want {
			t.Errorf("%s: got %q, %v", bucket, hosts, err)
		}
	}
}
