package hostnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/network/overlay"
)

// Change puts another node into a place of the network between the nodes. A node without
// ports for packets is nobody. A message with thousands of changes must be small, so a
// change has the address of the host once, and the prefixes of a place follow from the plan.
type Change struct {
	Index int
	Name  string     `json:",omitempty"`
	Host  netip.Addr `json:",omitzero"`
	Ports Ports      `json:",omitzero"`
}

// LargestChange returns the change that is the largest message for a place.
func LargestChange(index int) Change {
	const port = 65535
	return Change{
		Index: index, Name: strings.Repeat("n", cluster.LongestName), Host: netip.MustParseAddr("2001:1db8:aaaa:bbbb:cccc:dddd:eeee:ffff"),
		Ports: Ports{Packets: slices.Repeat([]uint16{port}, maxQueues), Streams: port, Switches: slices.Repeat([]uint16{port}, numSwitchPorts)},
	}
}

// Taken reports whether there is a node in the place.
func (c Change) Taken() bool { return len(c.Ports.Packets) > 0 }

// Node returns the node as the overlay sees it, without prefixes.
func (c Change) Node() overlay.Node {
	node := overlay.Node{Name: c.Name}
	if c.Taken() {
		node = c.Ports.At(c.Host, node)
	}
	return node
}

// Switches returns the listening addresses of the node's Switch.
func (c Change) Switches() []netip.AddrPort { return c.Ports.SwitchesAt(c.Host) }

// View is one node's configuration of the network between the nodes, as the head sends it.
type View struct {
	Key     []byte
	Carrier overlay.Carrier
	Self    int
	// Nodes holds the nodes of the places that are taken.
	Nodes []Change
}

// Places holds one node's configuration of the network between the nodes while nodes take
// places and leave them. It passes changes on to the process that serves the network.
type Places struct {
	mu      sync.Mutex
	key     []byte
	carrier overlay.Carrier
	self    int
	// nodes and prefixes hold the content of each place. owners has the index of each
	// address of a node.
	nodes    []Change
	prefixes [][]netip.Prefix
	owners   map[netip.AddrPort]int
	// server is the pipe to the process; nil if there is none.
	server *os.File
}

// passLimit bounds the wait until the process reads a change. The supervisor replaces a
// process that hangs.
const passLimit = 5 * time.Second

// NewPlaces returns the places of a configuration. prefixes has the prefixes of each place.
func NewPlaces(of View, prefixes [][]netip.Prefix) *Places {
	p := &Places{
		key: of.Key, carrier: of.Carrier, self: of.Self,
		nodes: make([]Change, len(prefixes)), prefixes: prefixes, owners: map[netip.AddrPort]int{},
	}
	for i := range p.nodes {
		p.nodes[i].Index = i
	}
	for _, node := range of.Nodes {
		if node.Index >= 0 && node.Index < len(p.nodes) {
			p.put(node)
		}
	}
	return p
}

// put changes a place. The caller holds mu.
func (p *Places) put(change Change) {
	for _, at := range p.nodes[change.Index].Node().Endpoints {
		delete(p.owners, unmapped(at))
	}
	p.nodes[change.Index] = change
	for _, at := range change.Node().Endpoints {
		p.owners[unmapped(at)] = change.Index
	}
}

// Self returns this node's index and the key of the network. They do not change.
func (p *Places) Self() (index int, key []byte) { return p.self, p.key }

// View returns the configuration of the node with an index, as it is now.
func (p *Places) View(self int) View {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := View{Key: p.key, Carrier: p.carrier, Self: self}
	for i, node := range p.nodes {
		if i == 0 || node.Taken() { // the head has no ports for itself
			of.Nodes = append(of.Nodes, node)
		}
	}
	return of
}

// Size returns the number of places.
func (p *Places) Size() int { return len(p.nodes) }

// Name returns the name of the node in a place, or "".
func (p *Places) Name(index int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[index].Name
}

// Current returns the configuration with all changes until now.
func (p *Places) Current() Overlay {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current()
}

func (p *Places) current() Overlay {
	now := Overlay{
		Key: p.key, Carrier: p.carrier, Self: p.self,
		Nodes: make([]overlay.Node, len(p.nodes)), Switches: make([][]netip.AddrPort, len(p.nodes)),
	}
	for i, node := range p.nodes {
		now.Nodes[i], now.Switches[i] = node.Node(), node.Switches()
		now.Nodes[i].Prefixes = p.prefixes[i]
	}
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
	if change.Index < 0 || change.Index >= len(p.nodes) || change.Index == p.self {
		return fmt.Errorf("change place %d of the network between the nodes: it is this node's (%d), or none of %d", change.Index, p.self, len(p.nodes))
	}
	if !change.Taken() {
		return nil
	}
	node := change.Node()
	for _, at := range slices.Concat(node.Endpoints, change.Switches(), []netip.AddrPort{node.Stream}) {
		if !at.IsValid() || at.Port() == 0 || at.Addr().IsUnspecified() {
			return fmt.Errorf("node %s cannot be reached at %s: this is not an address with a port", change.Name, at)
		}
	}
	// The other nodes have one family.
	if i := slices.IndexFunc(p.nodes, func(other Change) bool { return other.Taken() && other.Index != change.Index }); i >= 0 {
		if err := SameFamily(change.Name, change.Host, p.nodes[i].Name, p.nodes[i].Host); err != nil {
			return err
		}
	}
	for _, at := range node.Endpoints {
		if i, taken := p.owners[unmapped(at)]; taken && i != change.Index {
			return fmt.Errorf("node %s cannot be reached at %s: this is an address of node %s", change.Name, at, p.nodes[i].Name)
		}
	}
	return nil
}

// SameFamily returns an error if two nodes have addresses of different families: packets of
// one could not reach the other.
func SameFamily(name string, host netip.Addr, other string, otherHost netip.Addr) error {
	if host.Unmap().Is4() == otherHost.Unmap().Is4() {
		return nil
	}
	return fmt.Errorf("node %s has the address %s and node %s %s: all nodes need IPv4 addresses, or all IPv6; choose the network with --interface", name, host, other, otherHost)
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
	p.put(change)
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
