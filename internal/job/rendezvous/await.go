package rendezvous

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Accept returns the next node that has joined. A node that returns after its
// connection was lost is returned again.
func (h *Head) Accept(ctx context.Context) (*Peer, error) {
	for {
		h.mu.Lock()
		changed := h.changed
		if len(h.queue) > 0 {
			peer := h.queue[0]
			h.queue = h.queue[1:]
			h.mu.Unlock()
			return peer, nil
		}
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a node of step %s: %w", h.cfg.Step, context.Cause(ctx))
		case <-h.ctx.Done():
			return nil, fmt.Errorf("wait for a node of step %s: %w", h.cfg.Step, context.Cause(h.ctx))
		}
	}
}

// missingError names the nodes that did not join.
type missingError struct {
	Step  Step
	Nodes []string
	// Waited is the duration of the wait.
	Waited time.Duration
	// Refused lists, in order, the connections that were refused and the members
	// that left again, with the reasons: "ADDRESS: reason" or "NODE: reason".
	Refused []string
	Cause   error
}

func (e *missingError) Error() string {
	text := fmt.Sprintf("wait for the nodes of step %s: %s did not come within %s (%v)",
		e.Step, strings.Join(e.Nodes, ", "), e.Waited.Round(time.Second/10), e.Cause)
	if len(e.Refused) > 0 {
		return text + "; nodes that were refused: " + strings.Join(e.Refused, "; ")
	}
	return text + "; no message came from them: see with `scontrol show node " + e.Nodes[0] +
		"` whether it is up, and let it reach the ports of --port-range on the step's first node"
}

func (e *missingError) Unwrap() error { return e.Cause }

// Await waits until all named nodes are connected at the same time. If ctx ends
// before, the error is a *missingError. Accept returns each of these nodes, too.
func (h *Head) Await(ctx context.Context, names []string) error {
	start := time.Now()
	for {
		missing, refused, changed := h.missing(names)
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			return &missingError{h.cfg.Step, missing, time.Since(start), refused, context.Cause(ctx)}
		case <-h.ctx.Done():
			return &missingError{h.cfg.Step, missing, time.Since(start), refused, context.Cause(h.ctx)}
		}
	}
}

// maxReasons bounds the refusals that an error lists.
const maxReasons = 8

func (h *Head) missing(names []string) (missing, refused []string, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		if peer := h.joined[name]; peer == nil || peer.Err() != nil {
			missing = append(missing, name)
		}
	}
	arrived := map[string]bool{}
	for _, peer := range h.joined {
		arrived[addressOf(peer.RemoteAddr()).String()] = true
	}
	for who, why := range h.refused {
		// A node that has joined closes its other attempts. That is normal.
		if arrived[who] {
			continue
		}
		refused = append(refused, who+": "+why)
	}
	slices.Sort(refused)
	return missing, refused[:min(len(refused), maxReasons)], h.changed
}
