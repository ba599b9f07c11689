package launch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/internal/job/rendezvous"
)

// relay gets archives from the head for a node that lacks them, and passes them on
// to others meanwhile: where many nodes lack one, the head would send it to each.
type relay struct {
	source archiveSource
	head   netip.Addr
	ports  rendezvous.PortRange

	client *http.Client
	// server is nil, and port 0, where there is no free port: the head alone
	// gives archives to such a node.
	server *http.Server
	port   uint16

	mu sync.Mutex
	// copies are by the archives' numbers.
	copies map[int]*growing
}

func newRelay(source archiveSource, head netip.Addr, ports rendezvous.PortRange) *relay {
	return &relay{source: source, head: head, ports: ports, copies: map[int]*growing{}}
}

// open is done for the first archive that is not here.
func (r *relay) open() error {
	if r.client != nil {
		return nil
	}
	config, err := r.source.tls()
	if err != nil {
		return err
	}
	// Who gives an archive may be lost without a word.
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 5,
	}}
	r.client = &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config}}
	listener, err := listenTCP(netip.IPv6Unspecified(), r.ports)
	if err != nil {
		return nil // it only gets archives then
	}
	r.port = uint16(listener.Addr().(*net.TCPAddr).Port)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{archive}", r.give)
	r.server = newArchiveServer(mux, config.Clone())        // net/http notes in it what a server speaks
	go func() { _ = r.server.ServeTLS(listener, "", "") }() // until close
	return nil
}

// close takes nobody in any more. Who is just getting an archive gets the rest of
// it, whether or not the copy still has a name.
func (r *relay) close() {
	if r.client != nil {
		r.client.CloseIdleConnections()
	}
	if r.server != nil {
		go func() { _ = r.server.Shutdown(context.Background()) }() // ends with this process at the latest
	}
}

// fetch copies an archive of the head's into a directory and returns the path
// of the copy, which has the same base name: an image may be named after it.
func (r *relay) fetch(ctx context.Context, i int, a archive, dir string) (string, error) {
	if err := r.open(); err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(a.Path))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	copied := &growing{path: path, size: a.Size, changed: make(chan struct{})}
	r.mu.Lock()
	r.copies[i] = copied
	r.mu.Unlock()
	// From whomever the head names, and what that one does not give from the head.
	err = r.copy(ctx, i, r.port != 0, file, copied)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*os.PathError)) {
		err = r.copy(ctx, i, false, file, copied)
	}
	if err == nil && copied.received != a.Size {
		err = fmt.Errorf("%d of %d bytes came: the file has changed meanwhile", copied.received, a.Size)
	}
	err = errors.Join(err, file.Close())
	copied.advance(0, true)
	return path, err
}

// copy writes what is missing. relayed: from any node that has it.
func (r *relay) copy(ctx context.Context, i int, relayed bool, file *os.File, copied *growing) error {
	url := fmt.Sprintf("https://%s/%d?from=%d", netip.AddrPortFrom(r.head, r.source.Port), i, copied.received)
	if relayed {
		url += "&relay=" + strconv.Itoa(int(r.port))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the head answers %s", answer.Status)
	}
	_, err = io.Copy(io.MultiWriter(file, copied), answer.Body)
	return err
}

// give passes a copy on, as far as it has come.
func (r *relay) give(w http.ResponseWriter, request *http.Request) {
	i, err := strconv.Atoi(request.PathValue("archive"))
	from, badFrom := strconv.ParseInt(request.FormValue("from"), 10, 64)
	r.mu.Lock()
	copied := r.copies[i]
	r.mu.Unlock()
	if errors.Join(err, badFrom) != nil || copied == nil || from < 0 || from > copied.size {
		http.NotFound(w, request)
		return
	}
	file, err := os.Open(copied.path)
	if err != nil {
		http.NotFound(w, request)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Length", strconv.FormatInt(copied.size-from, 10))
	for from < copied.size {
		until, ok := copied.await(request.Context(), from)
		if !ok {
			return // he has less than was promised, and asks the head
		}
		n, err := io.Copy(w, io.NewSectionReader(file, from, min(until, copied.size)-from))
		if from += n; err != nil || n == 0 {
			return
		}
	}
}

// growing is a copy that is just being made.
type growing struct {
	path string
	size int64

	mu       sync.Mutex
	received int64
	ended    bool
	// changed is closed at each change.
	changed chan struct{}
}

func (g *growing) Write(p []byte) (int, error) {
	g.advance(len(p), false)
	return len(p), nil
}

func (g *growing) advance(n int, ended bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.received += int64(n)
	g.ended = ended
	close(g.changed)
	g.changed = make(chan struct{})
}

// await returns how much there is, once that is more than from.
func (g *growing) await(ctx context.Context, from int64) (int64, bool) {
	for {
		g.mu.Lock()
		received, ended, changed := g.received, g.ended, g.changed
		g.mu.Unlock()
		if received > from || ended {
			return received, received > from
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// tls is what both sides of a connection show and demand.
func (s archiveSource) tls() (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(s.Certificate, s.Key)
	if err != nil {
		return nil, err
	}
	trusted := newPool(s.Authority)
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13,
		RootCAs: trusted, ServerName: sourceName,
		ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}
