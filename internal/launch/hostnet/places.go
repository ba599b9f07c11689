package hostnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/network/overlay"
)

// Change puts another node into a place of the network between the nodes. A node without
// endpoints is nobody.
type Change struct {
	Index int
	// Name, Endpoints and Stream are as in overlay.Node. The place keeps its prefixes.
	Name      string
	Endpoints []netip.AddrPort
	Stream    netip.AddrPort
	// Switches holds the listening addresses of the node's Switch.
	Switches []netip.AddrPort
}

// Node returns the node as the overlay sees it, without prefixes.
func (c Change) Node() overlay.Node {
	return overlay.Node{Name: c.Name, Endpoints: c.Endpoints, Stream: c.Stream}
}

// Places holds one node's configuration of the network between the nodes while nodes take
// places and leave them. It passes changes on to the process that serves the network.
type Places struct {
	mu      sync.Mutex
	overlay Overlay
	// server is the pipe to the process; nil if there is none.
	server *os.File
}

// passLimit bounds the wait until the process reads a change. The supervisor replaces a
// process that hangs.
const passLimit = 5 * time.Second

// NewPlaces returns the places of a configuration.
func NewPlaces(overlay Overlay) *Places { return &Places{overlay: overlay} }

// Self returns this node's index and the key of the network. They do not change.
func (p *Places) Self() (index int, key []byte) { return p.overlay.Self, p.overlay.Key }

// Current returns the configuration with all changes until now.
func (p *Places) Current() Overlay {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current()
}

func (p *Places) current() Overlay {
	now := p.overlay
	now.Nodes, now.Switches = slices.Clone(now.Nodes), slices.Clone(now.Switches)
	return now
}

// Check returns an error if the nodes cannot reach the node of a change: its endpoints are
// invalid, belong to another node, or have another address family than the other nodes.
func (p *Places) Check(change Change) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.check(change)
}

func (p *Places) check(change Change) error {
	if change.Index < 0 || change.Index >= len(p.overlay.Nodes) || change.Index == p.overlay.Self {
		return fmt.Errorf("change place %d of the network between the nodes: it is this node's (%d), or none of %d", change.Index, p.overlay.Self, len(p.overlay.Nodes))
	}
	listening := slices.Concat(change.Endpoints, change.Switches)
	if change.Stream != (netip.AddrPort{}) {
		listening = append(listening, change.Stream)
	}
	for _, at := range listening {
		if !at.IsValid() || at.Port() == 0 || at.Addr().IsUnspecified() {
			return fmt.Errorf("node %s cannot be reached at %s: this is not an address with a port", change.Name, at)
		}
	}
	for i, other := range p.overlay.Nodes {
		if i == change.Index {
			continue
		}
		for _, at := range other.Endpoints {
			for _, own := range change.Endpoints {
				if own.Addr().Unmap().Is4() != at.Addr().Unmap().Is4() {
					return fmt.Errorf("node %s has the address %s and node %s %s: all nodes need IPv4 addresses, or all IPv6; choose the network with --interface", change.Name, own.Addr(), other.Name, at.Addr())
				}
				if unmapped(own) == unmapped(at) {
					return fmt.Errorf("node %s cannot be reached at %s: this is an address of node %s", change.Name, own, other.Name)
				}
			}
		}
	}
	return nil
}

func unmapped(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// Apply makes a change, which may have been made before, unless Check refuses it. Any other
// error means that the process that serves the network has not received the change. Then the
// process reads the end of the pipe, and another one begins with all changes.
func (p *Places) Apply(change Change) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(change); err != nil {
		return err
	}
	node := change.Node()
	node.Prefixes = p.overlay.Nodes[change.Index].Prefixes
	p.overlay.Nodes, p.overlay.Switches = slices.Clone(p.overlay.Nodes), slices.Clone(p.overlay.Switches)
	p.overlay.Nodes[change.Index], p.overlay.Switches[change.Index] = node, change.Switches
	if p.server == nil {
		return nil
	}
	_ = p.server.SetWriteDeadline(time.Now().Add(passLimit)) // a pipe has deadlines
	if err := json.NewEncoder(p.server).Encode(change); err != nil {
		p.disconnect()
		return fmt.Errorf("pass a change of the network between the nodes on: %w", err)
	}
	return nil
}

// Connect returns the configuration for a process that begins to serve the network, and the
// pipe with all later changes. It ends the pipe of an earlier process.
func (p *Places) Connect() (Overlay, *os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return Overlay{}, nil, fmt.Errorf("make a pipe for changes of the network between the nodes: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disconnect()
	p.server = writer
	return p.current(), reader, nil
}

// Close ends the pipe to the process. It may be called twice, and on nil.
func (p *Places) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disconnect()
}

func (p *Places) disconnect() {
	if p.server != nil {
		p.server.Close()
	}
	p.server = nil
}

// ReadChanges calls do with each change from a pipe of Connect. It returns nil when the
// pipe ends.
func ReadChanges(from io.Reader, do func(Change) error) error {
	for changes := json.NewDecoder(from); ; {
		var change Change
		switch err := changes.Decode(&change); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read a change of the network between the nodes: %w", err)
		}
		if err := do(change); err != nil {
			return err
		}
	}
}
