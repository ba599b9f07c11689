package overlay

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Replace gives the place of another node to node, or to nobody if node has neither
// endpoints nor a stream. The place keeps its prefixes. Sessions and streams with the
// earlier node end, and all others go on. Replace may be called before Run and while it
// runs, in the network namespace of the sockets.
func (o *Overlay) Replace(index int, node Node) error {
	o.setting.Lock()
	defer o.setting.Unlock()
	current := o.table.Load()
	if index < 0 || index >= len(current.peers) || index == o.self {
		return fmt.Errorf("replace node %d of the overlay: it is this node (%d), or none of %d", index, o.self, len(current.peers))
	}
	to, err := newPeer(o.key, o.self, index, node, o.ipv6, len(o.queues))
	if err == nil {
		var next *table
		if next, err = current.replace(to); err == nil {
			o.table.Store(next)
		}
	}
	if err != nil {
		return fmt.Errorf("replace node %d of the overlay: %w", index, err)
	}
	o.prober.replaced(current.peers[index])
	return nil
}

// replace returns a table with another peer in the peer's place.
func (t *table) replace(to *peer) (*table, error) {
	next := *t
	next.peers = slices.Clone(t.peers)
	next.peers[to.index] = to
	next.bySource = maps.Clone(t.bySource)
	maps.DeleteFunc(next.bySource, func(_ netip.AddrPort, p *peer) bool { return p.index == to.index })
	return &next, next.addSources(to)
}

// addSources adds the endpoints of a peer. It returns an error if one belongs to another.
func (t *table) addSources(p *peer) error {
	for _, endpoint := range p.endpoints {
		source := netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
		if other := t.bySource[source]; other != nil && other != p {
			return fmt.Errorf("node %s: endpoint %s belongs to %s", p.name, endpoint, other.name)
		}
		t.bySource[source] = p
	}
	return nil
}

// has reports whether a peer is still the node in its place.
func (t *table) has(p *peer) bool { return t.peers[p.index] == p }

// errReplaced ends a stream with a node whose place another one has taken.
var errReplaced = errors.New("another node has its place, or none")

// replaced makes the prober forget a peer, and probe the node in its place at once.
func (p *prober) replaced(old *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.old = append(p.old, old)
	select {
	case p.changes <- struct{}{}:
	default: // the prober will look
	}
}

// forget ends the streams to the peers that were replaced.
func (p *prober) forget() {
	p.mu.Lock()
	old := p.old
	p.old = nil
	p.mu.Unlock()
	for _, peer := range old {
		for _, one := range peer.paths {
			one.sending.Store(nil)
			if one.stream != nil {
				one.stream.close()
				one.stream = nil
			}
		}
	}
}
