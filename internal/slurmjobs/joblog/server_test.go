package joblog

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/testutil"
)

// served is a server whose job a test changes.
type served struct {
	*testing.T
	url       string
	authority *pki.Authority

	mu  sync.Mutex
	job Job
}

func (s *served) set(job Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.job = job
}

func serve(t *testing.T, roots ...string) *served {
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	s := &served{T: t, authority: authority}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := Server{
		Certificate: s.pair("server"), Authority: authority.Cert, Client: "api", Roots: roots, Interval: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Job: func(namespace, pod, container string) (Job, error) {
			if namespace+"/"+pod+"/"+container != "lab/cow-job/job" {
				return Job{}, errors.New("no such pod")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.job, nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.url = "https://" + listener.Addr().String()
	return s
}

func (s *served) pair(name string) tls.Certificate {
	s.Helper()
	pair, err := s.authority.Issue(pki.Identity{CommonName: name, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		s.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		s.Fatal(err)
	}
	return certificate
}

// client returns a client with certificates.
func (s *served) client(certificates ...tls.Certificate) *http.Client {
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(s.authority.Cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority, Certificates: certificates}}
	s.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get returns the status and the body of an answer.
func (s *served) get(path string) (int, string) {
	s.Helper()
	answer, err := s.client(s.pair("api")).Get(s.url + path)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Error(err)
	}
	return answer.StatusCode, string(text)
}

const cow = "/containerLogs/lab/cow-job/job"

func TestServer(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir)
	path := filepath.Join(dir, "out")
	if err := os.WriteFile(path, []byte("one\ntwo\nthree"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := Job{Name: "job 7", State: "COMPLETED", Ended: true, Output: path}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	at := func(path string) Job {
		job := ended
		job.Output = path
		return job
	}
	for _, test := range []struct {
		job  Job
		path string
		code int
		want string
	}{
		{ended, cow, 200, "one\ntwo\nthree"},
		{ended, cow + "?follow=true&stream=All", 200, "one\ntwo\nthree"},
		{ended, cow + "?follow=false&timestamps=false&previous=false", 200, "one\ntwo\nthree"},
		{ended, cow + "?tailLines=2", 200, "two\nthree"},
		{ended, cow + "?tailLines=0", 200, ""},
		{ended, cow + "?tailLines=9&limitBytes=5", 200, "one\nt"},
		{ended, cow + "?limitBytes=13", 200, "one\ntwo\nthree"},
		{ended, cow + "?tailLines=-1", 400, "tailLines: "},
		{ended, cow + "?limitBytes=x", 400, "limitBytes: "},
		{ended, cow + "?timestamps=true", 400, "has no timestamps"},
		{ended, cow + "?sinceSeconds=5", 400, "has no timestamps"},
		{ended, cow + "?previous=true", 400, "omit --previous"},
		{ended, cow + "?stream=Stderr", 400, "the standard error"},
		{Job{Name: "job 7", State: "PENDING"}, cow, 400, "job 7 has no output, its state is PENDING"},
		{Job{Name: "job 7", State: "CANCELLED", Ended: true}, cow + "?follow=true", 400, "job 7 has no output"},
		{at(dir + "/none"), cow, 400, "is not there"},
		{at("/dev/null"), cow, 400, "no regular file"},
		// Attacks.
		{at(secret), cow, 400, "is outside the folders that objects may use"},
		{at(link), cow, 400, "is outside the folders that objects may use"},
		{at(dir + "/../" + filepath.Base(filepath.Dir(secret)) + "/secret"), cow, 400, ""},
		{ended, "/containerLogs/other/cow-job/job", 400, "no such pod"},
		{ended, "/containerLogs/lab/cow/job", 400, "no such pod"},
		{ended, "/containerLogs/lab/cow-job/other", 400, "no such pod"},
		{ended, "/containerLogs/lab/%2e%2e/job", 400, "no such pod"},
		{ended, "/containerLogs/lab/cow-job/job/../../../../../etc/passwd", 404, ""},
		{ended, "/exec/lab/cow-job/job", 404, "runs no programs"},
		{ended, "/metrics/resource", 404, ""},
	} {
		s.set(test.job)
		code, got := s.get(test.path)
		if exact := test.code == 200; code != test.code || exact && got != test.want || !strings.Contains(got, test.want) || strings.Contains(got, "root:") || code != 200 && got == "secret" {
			t.Errorf("%s of %s: got %d %q, want %d %q", test.path, test.job.Output, code, got, test.code, test.want)
		}
	}
	answer, err := s.client(s.pair("api")).Post(s.url+cow, "text/plain", strings.NewReader("text"))
	if err != nil || answer.StatusCode != http.StatusNotFound {
		t.Errorf("POST: got %v, %v", answer, err)
	} else {
		answer.Body.Close()
	}
}

// Only the API server gets an answer.
func TestClients(t *testing.T) {
	s := serve(t)
	s.set(Job{Name: "job 7", State: "PENDING"})
	stranger := serve(t).pair("api") // of another authority
	for name, client := range map[string]*http.Client{
		"no certificate": s.client(), "a user of the cluster": s.client(s.pair("system:node:n1")), "another authority": s.client(stranger),
	} {
		if answer, err := client.Get(s.url + cow); err == nil {
			answer.Body.Close()
			t.Errorf("%s: got %s", name, answer.Status)
		}
	}
	if code, text := s.get(cow); code != 400 {
		t.Errorf("got %d %q", code, text)
	}
}

// A client follows a job that has not started, until it has ended.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir)
	s.set(Job{Name: "job 7", State: "PENDING"})
	answer, err := s.client(s.pair("api")).Get(s.url + cow + "?follow=true&tailLines=1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	job := Job{Name: "job 7", State: "RUNNING", Output: filepath.Join(dir, "out")}
	s.set(job) // the file is not there yet
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(answer.Body, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(job.Output, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	expect("one\n")
	write("two\n")
	expect("two\n")
	if err := os.Rename(job.Output, job.Output+".1"); err != nil { // requeued, truncated
		t.Fatal(err)
	}
	write("another start\n")
	expect("another start\n")
	// The file becomes a link to another one: the client must not take that for the end.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Symlink(secret, job.Output+".2"), os.Rename(job.Output+".2", job.Output)); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(answer.Body); err == nil || len(rest) > 0 {
		t.Errorf("got %q, %v", rest, err)
	}
}

func TestFollowEnds(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir)
	job := Job{Name: "job 7", State: "RUNNING", Output: filepath.Join(dir, "out")}
	s.set(job)
	answer, err := s.client(s.pair("api")).Get(s.url + cow + "?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := os.WriteFile(job.Output, []byte("all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	job.State, job.Ended = "COMPLETED", true
	s.set(job)
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "all\n" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestStartOfLast(t *testing.T) {
	long := strings.Repeat(strings.Repeat("x", 1000)+"\n", 200)
	for _, test := range []struct {
		text  string
		lines int64
		want  string
	}{
		{"", 3, ""}, {"a", 1, "a"}, {"a\n", 1, "a\n"}, {"a\nb", 1, "b"}, {"a\nb\n", 1, "b\n"}, {"a\n\n", 1, "\n"}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\n", 9, "a\nb\n"},
		{long, 150, long[50*1001:]},
	} {
		at, err := startOfLast(t.Context(), strings.NewReader(test.text), int64(len(test.text)), test.lines)
		if err != nil || test.text[at:] != test.want {
			t.Errorf("%.20q, %d: got %.20q, %v", test.text, test.lines, test.text[at:], err)
		}
	}
	// The client has gone: the rest of a large file is not read.
	ctx, cancel := context.WithCancel(t.Context())
	reads := readFunc(func([]byte, int64) { cancel() })
	if _, err := startOfLast(ctx, &reads, 1<<40, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// readFunc is called for each read of a file of zeros. The second read fails.
type readFunc func(part []byte, offset int64)

func (f *readFunc) ReadAt(part []byte, offset int64) (int, error) {
	if *f == nil {
		return 0, errors.New("read again")
	}
	(*f)(part, offset)
	*f = nil
	return len(part), nil
}

// TestKeyWithoutLinks: a file system may refuse links. Then, too, all processes have one key.
func TestKeyWithoutLinks(t *testing.T) {
	refuse := func(string, string) error { return &os.LinkError{Op: "link", Err: syscall.EPERM} }
	path := filepath.Join(t.TempDir(), "key")
	var group sync.WaitGroup
	keys := make([][]byte, 8)
	for i := range keys {
		group.Go(func() {
			err := createKey(path, refuse)
			if err == nil {
				keys[i], err = readKey(path)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, key := range keys {
		if len(key) != keySize || !bytes.Equal(key, keys[0]) {
			t.Errorf("got %x and %x", key, keys[0])
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Error(entries, err)
	}
}

func TestSeal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	var group sync.WaitGroup
	sealers := make([]Sealer, 8) // of processes that start at the same time
	for i := range sealers {
		group.Go(func() {
			var err error
			if sealers[i], err = NewSealer(path); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seal := sealers[0].Seal("u1", "/home/u/out")
	for i, sealer := range sealers {
		if !sealer.Valid("u1", "/home/u/out", seal) {
			t.Errorf("sealer %d refuses", i)
		}
	}
	for _, other := range [][3]string{{"u", "1/home/u/out", seal}, {"u2", "/home/u/out", seal}, {"u1", "/home/u/.ssh/id", seal}, {"u1", "/home/u/out", ""}} {
		if sealers[0].Valid(other[0], other[1], other[2]) {
			t.Errorf("%q is valid", other)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(fmt.Sprint(info.Mode()), err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSealer(path); err == nil {
		t.Error("an empty key")
	}
}

// TestPending: too many clients that send nothing are refused at once. When they have ended, the API
// server is served.
func TestPending(t *testing.T) {
	s := serve(t)
	address := strings.TrimPrefix(s.url, "https://")
	var conns []net.Conn
	for range maxPending + 1 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	last := conns[maxPending]
	if err := last.SetReadDeadline(time.Now().Add(headerTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v: it was not refused", err)
	}
	for _, conn := range conns {
		conn.Close()
	}
	testutil.Await(t, time.Minute, "an answer", func() error {
		answer, err := s.client(s.pair("api")).Get(s.url + "/none")
		if err == nil {
			answer.Body.Close()
		}
		return err
	})
}
