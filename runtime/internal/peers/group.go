package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
)

const (
	// ownersAsked is the number of nodes without an answer after which the registry is
	// used without further questions.
	ownersAsked = 3
	// deadFor is the time until the next request to a node that did not answer. startsFor
	// is the same for a node that refuses connections, because its containerd may be
	// about to start.
	deadFor   = 30 * time.Second
	startsFor = 2 * time.Second
	// connectLimit and answerLimit bound the wait for a connection and for an answer.
	// After that the registry is used, which always has the layer.
	connectLimit = 5 * time.Second
	answerLimit  = 10 * time.Second
	// silenceLimit bounds the time that another node may send nothing of a layer.
	// That node may itself wait for a registry. A lost node is noticed sooner.
	silenceLimit = time.Minute
	// name is the name of every node in the shared certificate.
	name = "peers"
)

// Config is the section of the content store in containerd's configuration.
type Config struct {
	// Nodes holds the host:port of all nodes, in the same order on each node; it is
	// empty if nothing is shared. Self is the index of this node.
	Nodes []string `toml:"nodes"`
	Self  int      `toml:"self"`
	// Certificate, Key and Authority are files. All nodes have the same ones,
	// and nobody else has them.
	Certificate string `toml:"certificate"`
	Key         string `toml:"key"`
	Authority   string `toml:"authority"`
}

// Counts counts bytes of layers: Taken from other nodes, and Given to them.
type Counts struct{ Taken, Given atomic.Uint64 }

// Map returns the counts by their names in berth's metrics.
func (c *Counts) Map() map[string]uint64 {
	return map[string]uint64{
		"berth_image_taken_bytes_total": c.Taken.Load(),
		"berth_image_given_bytes_total": c.Given.Load(),
	}
}

// group holds this node's view of the other nodes. It sends and answers requests.
type group struct {
	nodes   []string
	self    int
	store   *Store
	counts  *Counts
	client  *http.Client
	server  *http.Server
	silence time.Duration
	// directory covers the digests that this node owns or stands in for.
	directory directory

	mu   sync.Mutex
	dead map[int]time.Time
}

// Open returns the content store in a directory, and shares its layers with the
// other nodes until it is closed.
func Open(ctx context.Context, root string, config Config, counts *Counts) (*Store, error) {
	listener, err := net.Listen("tcp", config.Nodes[config.Self])
	if err != nil {
		return nil, fmt.Errorf("share layers: %w", err)
	}
	store, err := open(ctx, root, config, counts, listener)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return store, nil
}

func open(ctx context.Context, root string, config Config, counts *Counts, listener net.Listener) (*Store, error) {
	store, err := newStore(root)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(config.Certificate, config.Key)
	if err != nil {
		return nil, fmt.Errorf("share layers: %w", err)
	}
	authority, err := os.ReadFile(config.Authority)
	if err != nil {
		return nil, fmt.Errorf("share layers: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	// HTTP/2 would send all layers over one connection, and its flow control would
	// slow them down.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	// A lost node does not close its connections; keep-alives detect it.
	dialer := &net.Dialer{Timeout: connectLimit, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 5,
	}}
	g := &group{
		nodes: config.Nodes, self: config.Self, store: store, counts: counts, silence: silenceLimit, dead: map[int]time.Time{},
		client: &http.Client{Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: answerLimit, ResponseHeaderTimeout: answerLimit,
			IdleConnTimeout: deadFor, MaxIdleConnsPerHost: 4, Protocols: protocols, DisableCompression: true,
			TLSClientConfig: &tls.Config{
				Certificates: []tls.Certificate{certificate}, RootCAs: trusted, ServerName: name, MinVersion: tls.VersionTLS13,
			},
		}},
		server: &http.Server{
			ReadHeaderTimeout: 2 * answerLimit, IdleTimeout: 2 * deadFor, Protocols: protocols,
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // reports clients without a certificate
			TLSConfig: &tls.Config{
				Certificates: []tls.Certificate{certificate}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
				MinVersion: tls.VersionTLS13,
			},
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /giver/{digest}", g.answer)
	mux.HandleFunc("GET /layer/{digest}", g.give)
	g.server.Handler = mux
	store.group = g
	go func() {
		if err := g.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			log.G(ctx).WithError(err).Error("layers are not shared any more")
		}
	}()
	return store, nil
}

// Close ends all transfers to other nodes.
func (s *Store) Close() error {
	s.group.client.CloseIdleConnections()
	return s.group.server.Close()
}

// fill receives a layer from other nodes until it is complete or no other node
// has more of it. It returns only errors of writing the layer.
func (g *group) fill(ctx context.Context, dgst digest.Digest, offset, size int64, to *writer) error {
	q := question{digest: dgst, node: g.self}
	for offset < size && ctx.Err() == nil {
		node := g.ask(ctx, q)
		if node == nobody {
			return nil
		}
		n, err := g.take(ctx, node, dgst, offset, size, to)
		offset += n
		if err == nil {
			continue
		}
		log.G(ctx).WithError(err).Infof("layer %s stopped coming from node %d after %d bytes", dgst, node, n)
		if failed := new(writeError); errors.As(err, &failed) {
			return failed.error // nobody else can help
		}
		q.without = append(q.without, node)
		q.again = true
	}
	return nil
}

// ask asks the owner of a digest, or its substitutes, for a node that can send the layer.
// It returns nobody if there is none, or if too many of them do not answer.
func (g *group) ask(ctx context.Context, q question) int {
	q.without = append(g.deadNodes(), q.without...)
	asked := 0
	for _, owner := range owners(q.digest, len(g.nodes)) {
		if owner == g.self {
			return g.giver(q)
		}
		if slices.Contains(g.deadNodes(), owner) {
			continue
		}
		giver, err := g.askNode(ctx, owner, q)
		if err == nil {
			return giver
		}
		g.markDead(ctx, owner, err)
		if asked++; asked == ownersAsked {
			break
		}
	}
	return nobody
}

func (g *group) askNode(ctx context.Context, owner int, q question) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	values := url.Values{"node": {strconv.Itoa(q.node)}, "again": {strconv.FormatBool(q.again)}}
	for _, node := range q.without {
		values.Add("without", strconv.Itoa(node))
	}
	answer, err := g.get(ctx, owner, "/giver/"+q.digest.String()+"?"+values.Encode())
	if err != nil {
		return nobody, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 32))
	if err != nil {
		return nobody, err
	}
	giver, err := strconv.Atoi(string(text))
	if err != nil || giver < nobody || giver >= len(g.nodes) || giver == g.self {
		return nobody, fmt.Errorf("node %d names %q", owner, text)
	}
	return giver, nil
}

// answer handles requests of askNode.
func (g *group) answer(w http.ResponseWriter, r *http.Request) {
	dgst, err := digest.Parse(r.PathValue("digest"))
	q := question{digest: dgst, again: r.FormValue("again") == "true"}
	if err == nil {
		q.node, err = g.node(r.FormValue("node"))
	}
	for _, text := range r.Form["without"] {
		node, badNode := g.node(text)
		q.without, err = append(q.without, node), errors.Join(err, badNode)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = io.WriteString(w, strconv.Itoa(g.giver(q))) // without an answer, the client asks another node
}

// giver answers as the owner of a digest or as its substitute. A substitute, or an
// owner that has restarted, knows only what this node itself has.
func (g *group) giver(q question) int {
	if giver := g.directory.giver(q); giver != nobody {
		return giver
	}
	if q.node != g.self && !slices.Contains(q.without, g.self) && g.store.has(q.digest) {
		return g.self
	}
	return nobody
}

// node parses the index of a node.
func (g *group) node(text string) (int, error) {
	node, err := strconv.Atoi(text)
	if err == nil && (node < 0 || node >= len(g.nodes)) {
		err = fmt.Errorf("there is no node %d", node)
	}
	return node, err
}

// writeError is the error of a node that cannot store what it receives.
type writeError struct{ error }

// take receives a layer, from an offset on, from a node that has it or is receiving it.
// It returns the number of bytes that were written.
func (g *group) take(ctx context.Context, node int, dgst digest.Digest, offset, size int64, to *writer) (taken int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answer, err := g.get(ctx, node, fmt.Sprintf("/layer/%s?from=%d", dgst, offset))
	if err != nil {
		if !errors.As(err, new(*statusError)) {
			g.markDead(ctx, node, err)
		}
		return 0, err
	}
	defer answer.Body.Close()
	silence := time.AfterFunc(g.silence, func() { cancel(fmt.Errorf("nothing came for %s", g.silence)) })
	defer silence.Stop()
	buffer := make([]byte, 128<<10)
	for taken < size-offset {
		n, err := answer.Body.Read(buffer[:min(int64(len(buffer)), size-offset-taken)])
		silence.Reset(g.silence)
		written, failed := to.Write(buffer[:n])
		taken += int64(written)
		to.taken += int64(written)
		g.counts.Taken.Add(uint64(written))
		switch {
		case failed != nil:
			return taken, &writeError{failed}
		case taken == size-offset:
		case err != nil && context.Cause(ctx) != nil:
			return taken, context.Cause(ctx)
		case err != nil:
			return taken, err
		}
	}
	return taken, nil
}

// give handles requests of take.
func (g *group) give(w http.ResponseWriter, r *http.Request) {
	dgst, err := digest.Parse(r.PathValue("digest"))
	offset, badOffset := strconv.ParseInt(r.FormValue("from"), 10, 64)
	if err := errors.Join(err, badOffset); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	blob, err := g.store.open(dgst)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer blob.Close()
	if offset < 0 || offset >= blob.size {
		http.Error(w, "there is no such byte", http.StatusRequestedRangeNotSatisfiable)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(blob.size-offset, 10))
	// Flush at once, because the rest may take a while. A client that gets fewer bytes
	// than announced asks another node, so give reports no errors.
	flusher := http.NewResponseController(w)
	if flusher.Flush() != nil {
		return
	}
	for offset < blob.size {
		until := blob.size
		if blob.in != nil {
			if until, err = blob.in.await(r.Context(), offset); err != nil {
				return
			}
		}
		n, err := io.Copy(w, io.NewSectionReader(blob.File, offset, min(until, blob.size)-offset))
		offset += n
		g.counts.Given.Add(uint64(n))
		if err != nil || n == 0 || flusher.Flush() != nil {
			return
		}
	}
}

// statusError is a response other than 200 OK.
type statusError struct{ status, text string }

func (e *statusError) Error() string { return e.status + ": " + e.text }

func (g *group) get(ctx context.Context, node int, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+g.nodes[node]+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := g.client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // an explanation at best
		return nil, &statusError{answer.Status, string(text)}
	}
	return answer, nil
}

// markDead records that a node did not answer. It does nothing if the request was
// cancelled, which proves nothing about the node.
func (g *group) markDead(ctx context.Context, node int, why error) {
	if ctx.Err() != nil {
		return
	}
	log.G(ctx).WithError(why).Infof("node %d does not share layers", node)
	until := deadFor
	if errors.Is(why, syscall.ECONNREFUSED) {
		until = startsFor
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead[node] = time.Now().Add(until)
}

func (g *group) deadNodes() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	var nodes []int
	for node, until := range g.dead {
		if time.Now().Before(until) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
