package rendezvous

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// lookupLimit bounds one lookup of a node's addresses. lookups bounds the
	// concurrent lookups.
	lookupLimit = 5 * time.Second
	lookups     = 16
	// lookupAgain is the maximum age of the addresses when an unknown address
	// connects.
	lookupAgain = 2 * time.Second
)

// members holds the addresses of the nodes of the step.
type members struct {
	nodes     []string
	addresses func(context.Context, string) ([]netip.Addr, error)

	asking sync.Mutex // held while nodes are looked up
	mu     sync.Mutex
	known  map[string][]netip.Addr
	asked  time.Time
	failed error
}

// allowed checks that the address belongs to the node, or, if node is empty, to any
// node of the step. A denial is based on addresses at most two seconds old, because
// a node's address may have become known just now.
func (m *members) allowed(ctx context.Context, node string, address netip.Addr) error {
	if m.addresses == nil {
		return nil
	}
	if m.has(node, address) {
		return nil
	}
	// Many simultaneous connections cause only one lookup.
	m.asking.Lock()
	defer m.asking.Unlock()
	if m.stale() {
		m.ask(ctx)
	}
	if m.has(node, address) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	who := "any node of the step"
	if node != "" {
		who = fmt.Sprintf("node %s, which has %v", node, m.known[node])
	}
	if m.failed != nil {
		return fmt.Errorf("%s is not an address of %s (not all could be looked up: %w)", address, who, m.failed)
	}
	return fmt.Errorf("%s is not an address of %s", address, who)
}

func (m *members) stale() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.asked) >= lookupAgain
}

func (m *members) has(node string, address netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, addresses := range m.known {
		if (node == "" || name == node) && slices.Contains(addresses, address) {
			return true
		}
	}
	return false
}

// ask looks up all nodes. If a lookup fails, the known addresses stay.
func (m *members) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	type answer struct {
		node      string
		addresses []netip.Addr
		err       error
	}
	answers, slots := make(chan answer, len(m.nodes)), make(chan struct{}, lookups)
	for _, node := range m.nodes {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			addresses, err := m.addresses(ctx, node)
			answers <- answer{node, addresses, err}
		}()
	}
	known, failed := make(map[string][]netip.Addr, len(m.nodes)), error(nil)
	for range m.nodes {
		got := <-answers
		if got.err != nil {
			failed = fmt.Errorf("look up node %s: %w", got.node, got.err)
			known[got.node] = m.knownOf(got.node)
			continue
		}
		for _, address := range got.addresses {
			known[got.node] = append(known[got.node], plain(address))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.asked, m.failed = known, time.Now(), failed
}

func (m *members) knownOf(node string) []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[node]
}

// plain returns the address in a canonical form.
func plain(address netip.Addr) netip.Addr { return address.Unmap().WithZone("") }

func addressOf(addr net.Addr) netip.Addr {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return plain(tcp.AddrPort().Addr())
	}
	return netip.Addr{}
}
