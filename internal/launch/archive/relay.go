package archive

import (
	"context"
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
	"berth.dev/berth/internal/launch/hostnet"
)

// Relay receives archives for a node that lacks them, and passes them on to other
// nodes meanwhile. Otherwise the head would send each archive to every such node.
type Relay struct {
	source Source
	head   netip.Addr
	ports  rendezvous.PortRange

	client *http.Client
	// server is nil and port 0 if no port is free. Such a node receives archives
	// only from the head.
	server *http.Server
	port   uint16

	mu sync.Mutex
	// copies maps the number of an archive to its copy.
	copies map[int]*growing
}

// NewRelay returns a relay for the archives of source, which the head serves. The relay
// listens on a free port of ports.
func NewRelay(source Source, head netip.Addr, ports rendezvous.PortRange) *Relay {
	return &Relay{source: source, head: head, ports: ports, copies: map[int]*growing{}}
}

// open prepares the relay when the first archive is missing. Later calls do nothing.
func (r *Relay) open() error {
	if r.client != nil {
		return nil
	}
	config, err := r.source.tls()
	if err != nil {
		return err
	}
	// The sender may be lost without closing the connection.
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 5,
	}}
	r.client = &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config}}
	listener, err := hostnet.ListenTCP(netip.IPv6Unspecified(), r.ports)
	if err != nil {
		return nil // it only receives archives then
	}
	r.port = uint16(listener.Addr().(*net.TCPAddr).Port)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{archive}", r.give)
	r.server = newHTTPServer(mux, config.Clone())           // net/http adds the server's protocols to it
	go func() { _ = r.server.ServeTLS(listener, "", "") }() // until Close
	return nil
}

// Close accepts no further requests. A node that is receiving an archive still
// gets the rest, even if the file of the copy has been removed.
func (r *Relay) Close() {
	if r.client != nil {
		r.client.CloseIdleConnections()
	}
	if r.server != nil {
		go func() { _ = r.server.Shutdown(context.Background()) }() // ends with this process at the latest
	}
}

// fetch copies an archive of the head into dir and returns the path. The copy
// keeps its base name, because the image may be named after it.
func (r *Relay) fetch(ctx context.Context, i int, a Archive, dir string) (string, error) {
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
	// Try the node that the head selects. What it does not send comes from the
	// head.
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

// copy appends the missing bytes to file. If relayed is set, they may come from
// another node.
func (r *Relay) copy(ctx context.Context, i int, relayed bool, file *os.File, copied *growing) error {
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

// give sends the copy to another node while it grows.
func (r *Relay) give(w http.ResponseWriter, request *http.Request) {
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
			return // the client has less than was promised, and asks the head
		}
		n, err := io.Copy(w, io.NewSectionReader(file, from, min(until, copied.size)-from))
		if from += n; err != nil || n == 0 {
			return
		}
	}
}

// growing is a copy that is still being received.
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

// await waits until more than from bytes have come, and returns their number. It
// returns false if no more will come.
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
