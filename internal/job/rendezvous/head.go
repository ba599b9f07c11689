package rendezvous

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Head is the listening side: the task on the step's first node.
type Head struct {
	cfg      Config
	tls      *tls.Config
	members  *members
	listener *net.TCPListener
	ctx      context.Context
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	pending map[*pending]struct{}
	joined  map[string]*Peer
	queue   []*Peer           // joined, not yet returned by Accept
	refused map[string]string // by node or address: the last reason for a refusal or a loss
	changed chan struct{}     // closed and replaced when joined or queue change
}

// pending is a connection that has not been authenticated yet.
type pending struct {
	from   netip.Addr
	cancel context.CancelCauseFunc
}

var (
	errHeadClosed = errors.New("the head does not listen any more")
	errCrowded    = errors.New("too many connections that prove nothing: another one took its place")
)

// maxRefused bounds the number of remembered refusals.
const maxRefused = 256

// Listen listens on the first free candidate port, until ctx ends or Close is
// called. Accepted peers outlive it.
func Listen(ctx context.Context, cfg Config) (*Head, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Node != cfg.head() {
		return nil, fmt.Errorf("listen on node %s: the head of step %s is %s, this node has to join it", cfg.Node, cfg.Step, cfg.head())
	}
	secrets, err := serverTLS()
	if err != nil {
		return nil, err
	}
	listener, err := listen(ctx, cfg)
	if err != nil {
		return nil, err
	}
	h := &Head{
		cfg: cfg, tls: secrets, listener: listener,
		members: &members{nodes: cfg.Nodes, addresses: cfg.Addresses},
		pending: map[*pending]struct{}{}, joined: map[string]*Peer{}, refused: map[string]string{},
		changed: make(chan struct{}),
	}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(h.ctx, func() { listener.Close() })
	h.running.Go(h.accept)
	return h, nil
}

func listen(ctx context.Context, cfg Config) (*net.TCPListener, error) {
	host := ""
	if cfg.Bind.IsValid() {
		host = cfg.Bind.String()
	}
	// The protocol has its own heartbeats. The kernel's would be redundant.
	config := net.ListenConfig{KeepAlive: -1}
	var problem error
	for _, port := range cfg.candidates() {
		listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return listener.(*net.TCPListener), nil
		}
		cfg.Log.Debug("candidate port of the rendezvous is taken", "port", port, "error", err)
		problem = err
	}
	return nil, fmt.Errorf("listen for the nodes of step %s: none of the %d candidate ports in %s could be opened: %w; choose other ports with --port-range",
		cfg.Step, len(cfg.candidates()), cfg.Ports, problem)
}

// Close stops listening and closes the peers that nobody has accepted. It may be
// called twice.
func (h *Head) Close() {
	h.cancel(errHeadClosed)
	h.running.Wait()
	h.mu.Lock()
	left := h.queue
	h.queue = nil
	h.mu.Unlock()
	for _, peer := range left {
		peer.Close(errHeadClosed.Error())
	}
}

// accept serves each connection in a goroutine.
func (h *Head) accept() {
	for {
		conn, err := h.listener.AcceptTCP()
		if err != nil {
			if h.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Probably there are no free file descriptors. Wait until other
			// connections end.
			h.cfg.Log.Warn("cannot accept a connection of the rendezvous", "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-h.ctx.Done():
				return
			}
			continue
		}
		from := addressOf(conn.RemoteAddr())
		ctx, this := h.admit(from)
		h.running.Go(func() {
			defer h.forget(this)
			if err := h.serve(ctx, this, conn, from); err != nil {
				conn.Close()
				h.addRefusal(from.String(), err)
			}
		})
	}
}

// finalError refuses a node for good.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// Final marks an error of Config.Admit: the node does not try again.
func Final(err error) error { return &finalError{err} }

// IsFinal reports whether Final has marked an error.
func IsFinal(err error) bool { return errors.As(err, new(*finalError)) }

// admit registers a pending connection. If its address already has a quarter of
// MaxPending, admit evicts a random one of them. If there are MaxPending in all, it evicts
// a random one of the address with the most. So a slow client cannot keep others out,
// because nobody can predict which connection stays.
func (h *Head) admit(from netip.Addr) (context.Context, *pending) {
	ctx, cancel := context.WithTimeoutCause(h.ctx, h.cfg.Handshake, fmt.Errorf("it did not prove itself within %s", h.cfg.Handshake))
	ctx, cancelCause := context.WithCancelCause(ctx)
	this := &pending{from: from, cancel: func(cause error) { cancelCause(cause); cancel() }}
	h.mu.Lock()
	defer h.mu.Unlock()
	count := map[netip.Addr]int{}
	most := from
	for other := range h.pending {
		if count[other.from]++; count[other.from] > count[most] {
			most = other.from
		}
	}
	switch {
	case count[from] >= h.cfg.MaxPending/4:
		h.evict(from)
	case len(h.pending) >= h.cfg.MaxPending:
		h.evict(most)
	}
	h.pending[this] = struct{}{}
	return ctx, this
}

// evict ends a pending connection of an address. Go's map order makes the choice
// random.
func (h *Head) evict(from netip.Addr) {
	for other := range h.pending {
		if other.from == from {
			delete(h.pending, other)
			other.cancel(errCrowded)
			return
		}
	}
}

// proven exempts a connection from eviction: it is one of this user's, and the decision about it
// may take a while.
func (h *Head) proven(this *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pending, this)
}

func (h *Head) forget(this *pending) {
	this.cancel(nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pending, this)
}

// addRefusal remembers a refusal. If a node does not join, the error shows the refusals
// with their addresses or names.
func (h *Head) addRefusal(who string, err error) {
	h.cfg.Log.Debug("refused a connection of the rendezvous", "from", who, "error", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.refused[who]; known || len(h.refused) < maxRefused {
		h.refused[who] = err.Error()
	}
}

// serve authenticates both sides of a connection, and makes it a peer. The head
// must prove itself first, because a worker sends nothing to an unproven head.
func (h *Head) serve(ctx context.Context, this *pending, raw net.Conn, from netip.Addr) error {
	if err := h.members.allowed(h.ctx, "", from); err != nil {
		return err
	}
	stop := closeWith(ctx, raw)
	defer stop()
	conn := tls.Server(raw, h.tls)
	binding, err := secure(ctx, conn)
	if err != nil {
		return because(ctx, err)
	}
	own := Claim{Protocol: protocol, Role: RoleHead, Step: h.cfg.Step, Node: h.cfg.Node, Binding: binding}
	proof, err := h.cfg.Prover.Prove(ctx, own)
	if err != nil {
		return because(ctx, err)
	}
	if _, err := conn.Write(frame(frameProof, proof)); err != nil {
		return because(ctx, err)
	}
	// A worker sends only its proof until it is accepted, so the buffer holds no
	// further data.
	kind, credential, err := readFrame(bufio.NewReader(conn), maxProof)
	if err != nil {
		return because(ctx, fmt.Errorf("it went away before its proof: %w", err))
	}
	if kind != frameProof {
		return fmt.Errorf("it sent a frame of kind %q, want its proof", kind)
	}
	refuse := func(reason error, final bool) error {
		// Ignore errors: the worker may be gone.
		_, _ = conn.Write(frame(frameRefusal, refusal{Reason: reason.Error(), Final: final}.encode()))
		_ = conn.CloseWrite()
		return because(ctx, reason)
	}
	claim, err := h.cfg.Prover.Verify(ctx, credential)
	if err != nil {
		return refuse(err, false)
	}
	want := own
	want.Role, want.Node = RoleWorker, ""
	if err := claim.check(want); err != nil {
		return refuse(err, errors.Is(err, errProtocol))
	}
	h.proven(this)
	if h.cfg.Admit != nil && !slices.Contains(h.cfg.Nodes, claim.Node) {
		if err := h.cfg.Admit(ctx, claim.Node, from); err != nil {
			h.addRefusal(claim.Node, err)
			return refuse(err, IsFinal(err))
		}
		return h.join(claim.Node, conn, stop, refuse)
	}
	if claim.Node == h.cfg.Node || !slices.Contains(h.cfg.Nodes, claim.Node) {
		return refuse(fmt.Errorf("node %q is not one of the nodes of step %s: %v", claim.Node, h.cfg.Step, h.cfg.Nodes[1:]), true)
	}
	if err := h.members.allowed(h.ctx, claim.Node, from); err != nil {
		h.addRefusal(claim.Node, err)
		return refuse(err, false)
	}
	return h.join(claim.Node, conn, stop, refuse)
}

// join registers the authenticated connection for the node, unless the node has a
// live connection. That one may be dead without having been noticed, so the node
// may try again: a dead connection is detected after Config.Loss.
func (h *Head) join(node string, conn *tls.Conn, stop func() bool, refuse func(error, bool) error) error {
	h.mu.Lock()
	if other := h.joined[node]; other != nil && other.Err() == nil {
		h.mu.Unlock()
		return refuse(fmt.Errorf("node %s is connected already, from %s: two tasks on one node, or a lost connection that is not yet noticed", node, other.RemoteAddr()), false)
	}
	if !stop() {
		h.mu.Unlock()
		return errHeadClosed
	}
	peer := newPeer(node, conn, h.cfg, frame(frameWelcome, nil))
	h.queue = slices.DeleteFunc(h.queue, func(old *Peer) bool { return old.name == node })
	h.queue = append(h.queue, peer)
	h.joined[node] = peer
	delete(h.refused, node)
	h.announce()
	h.running.Go(func() { h.release(peer) })
	h.mu.Unlock()
	return nil
}

// announce wakes Accept and Await.
func (h *Head) announce() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// release frees a node's name when its connection has ended.
func (h *Head) release(peer *Peer) {
	select {
	case <-peer.Done():
	case <-h.ctx.Done():
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.joined[peer.name] == peer {
		delete(h.joined, peer.name)
		h.refused[peer.name] = fmt.Sprintf("it came, but then: %v", peer.Err())
		h.announce()
	}
}
