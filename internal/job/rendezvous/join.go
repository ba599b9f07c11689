package rendezvous

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// The pause before another attempt grows from firstRetry to lastRetry, because
	// the head's task may start seconds later than this one.
	firstRetry = 25 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
)

// refusedError reports that the authenticated head rejects this node, and will
// always reject it.
type refusedError struct {
	Head, Reason string
}

// IsRefusal reports whether the authenticated head rejects this node, and will always reject it.
func IsRefusal(err error) bool { return errors.As(err, new(*refusedError)) }

func (e *refusedError) Error() string {
	return fmt.Sprintf("the head %s refuses this node: %s", e.Head, e.Reason)
}

// Join connects to the head at any of its addresses and candidate ports. It tries
// again until ctx ends. It recognises other programs on these ports and does not
// disturb them.
func Join(ctx context.Context, cfg Config, addresses []netip.Addr) (*Peer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Node == cfg.head() {
		return nil, fmt.Errorf("join step %s: this node, %s, is its head, and has to listen", cfg.Step, cfg.Node)
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("join the head %s of step %s: it has no address; name the interface with --interface", cfg.head(), cfg.Step)
	}
	j := &joining{cfg: cfg, start: time.Now(), turn: make(chan struct{}, 1), problems: map[candidate]error{}}
	attempts, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make(chan *Peer, 1)
	var running sync.WaitGroup
	targets := []candidate{}
	for _, address := range addresses {
		for _, port := range cfg.candidates() {
			to := netip.AddrPortFrom(address, port)
			targets = append(targets, candidate{to: to})
			if cfg.From.IsValid() && cfg.From.Unmap().Is4() == address.Unmap().Is4() {
				targets = append(targets, candidate{cfg.From, to})
			}
		}
	}
	for _, target := range targets {
		running.Go(func() {
			peer, err := j.keepTrying(attempts, target)
			if peer != nil || err != nil {
				cancel(err)
			}
			if peer == nil {
				return
			}
			select {
			case found <- peer:
			default:
				// The first connection broke at once, and the head accepted a
				// second one.
				peer.Close("this node has another connection")
			}
		})
	}
	running.Wait()
	select {
	case peer := <-found:
		return peer, nil
	default:
	}
	var refused *refusedError
	if cause := context.Cause(attempts); errors.As(cause, &refused) || errors.Is(cause, errProtocol) {
		return nil, fmt.Errorf("join step %s: %w", cfg.Step, cause)
	}
	return nil, j.failure(context.Cause(ctx))
}

// joining is the state of a worker that looks for its head.
type joining struct {
	cfg   Config
	start time.Time
	// turn is held by the attempt that has found the head and authenticates. So a
	// head with several addresses receives only one request.
	turn chan struct{}

	mu       sync.Mutex
	problems map[candidate]error
}

// candidate is a way to the head. from is invalid if the route selects it.
type candidate struct {
	from netip.Addr
	to   netip.AddrPort
}

func (c candidate) String() string {
	if c.from.IsValid() {
		return c.from.String() + " to " + c.to.String()
	}
	return c.to.String()
}

// keepTrying connects to one candidate, again and again. It returns a peer if that
// is the head, an error if further attempts are useless, and neither if ctx ends.
func (j *joining) keepTrying(ctx context.Context, target candidate) (*Peer, error) {
	wait := firstRetry
	for {
		peer, err := j.attempt(ctx, target)
		if err == nil {
			return peer, nil
		}
		var refused *refusedError
		if errors.As(err, &refused) || errors.Is(err, errProtocol) {
			return nil, err
		}
		if over(ctx) {
			return nil, nil // the earlier error is more useful than the timeout
		}
		j.cfg.Log.Debug("candidate is not the head, or refuses", "address", target, "error", err)
		j.mu.Lock()
		j.problems[target] = err
		j.mu.Unlock()
		// Randomise the pause, so that many nodes do not connect at once.
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, nil
		}
		wait = min(2*wait, lastRetry)
	}
}

// over reports whether ctx has ended or is about to end. A connection enforces the
// deadline itself, and may time out first.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// attempt makes one connection. It sends nothing until the other side has proven to
// be the head.
func (j *joining) attempt(ctx context.Context, target candidate) (peer *Peer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, j.cfg.Handshake, fmt.Errorf("it did not answer within %s", j.cfg.Handshake))
	defer cancel()
	defer func() {
		err = because(ctx, err)
	}()
	dialer := net.Dialer{KeepAlive: -1}
	if target.from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(target.from, 0))
	}
	raw, err := dialer.DialContext(ctx, "tcp", target.to.String())
	if err != nil {
		return nil, err
	}
	stop := closeWith(ctx, raw)
	defer func() {
		if peer == nil {
			stop()
			raw.Close()
		}
	}()
	conn := tls.Client(raw, clientTLS())
	binding, err := secure(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("another program listens there: %w", err)
	}
	if err := j.verifyHead(ctx, conn, binding); err != nil {
		return nil, err
	}
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := j.introduce(ctx, conn, binding); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	return newPeer(j.cfg.head(), conn, j.cfg, nil), nil
}

// because replaces an error by the cause of ctx's end if ctx has ended. It keeps an error that
// wraps the cause: that of munge names the program, too.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && !errors.Is(err, cause) && cause != nil {
		return cause
	}
	return err
}

func (j *joining) verifyHead(ctx context.Context, conn *tls.Conn, binding []byte) error {
	kind, credential, err := readFrame(conn, maxProof)
	if err != nil {
		return fmt.Errorf("it did not prove to be the head: %w", err)
	}
	if kind != frameProof {
		return fmt.Errorf("it sent a frame of kind %q, want its proof", kind)
	}
	claim, err := j.cfg.Prover.Verify(ctx, credential)
	if err != nil {
		return fmt.Errorf("it did not prove to be the head: %w", err)
	}
	return claim.check(Claim{Protocol: protocol, Role: RoleHead, Step: j.cfg.Step, Node: j.cfg.head(), Binding: binding})
}

// introduce authenticates this node to the head and waits for the reply.
func (j *joining) introduce(ctx context.Context, conn *tls.Conn, binding []byte) error {
	proof, err := j.cfg.Prover.Prove(ctx, Claim{Protocol: protocol, Role: RoleWorker, Step: j.cfg.Step, Node: j.cfg.Node, Binding: binding})
	if err != nil {
		return err
	}
	if _, err := conn.Write(frame(frameProof, proof)); err != nil {
		return err
	}
	kind, content, err := readFrame(conn, maxReason)
	if err != nil {
		return fmt.Errorf("the head did not answer: %w", err)
	}
	switch kind {
	case frameWelcome:
		return nil
	case frameRefusal:
		var said refusal
		if err := json.Unmarshal(content, &said); err != nil {
			return fmt.Errorf("read the refusal of the head: %w", err)
		}
		if said.Final {
			return &refusedError{Head: j.cfg.head(), Reason: said.Reason}
		}
		return fmt.Errorf("the head refuses this node for now: %s", said.Reason)
	}
	return fmt.Errorf("the head sent a frame of kind %q, want a welcome", kind)
}

// failure combines the errors of all candidates. "Connection refused" is the usual
// error, and is listed only once.
func (j *joining) failure(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var reasons, closed []string
	for target, problem := range j.problems {
		if errors.Is(problem, syscall.ECONNREFUSED) {
			closed = append(closed, target.String())
			continue
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", target, problem))
	}
	slices.Sort(reasons)
	slices.Sort(closed)
	if len(reasons) > maxReasons {
		reasons = append(reasons[:maxReasons], fmt.Sprintf("and %d more", len(reasons)-maxReasons))
	}
	if len(closed) > 0 {
		reasons = append(reasons, "nobody listens at "+strings.Join(closed, ", "))
	}
	return fmt.Errorf("join the head %s of step %s within %s: %w (%s); is the head's task alive, and do the nodes reach each other's ports %s? choose others with --port-range, another network with --interface",
		j.cfg.head(), j.cfg.Step, time.Since(j.start).Round(time.Second/10), cause, strings.Join(reasons, "; "), j.cfg.Ports)
}
