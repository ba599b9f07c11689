package fastpath

import (
	"fmt"
	"net/netip"
)

// control decides by what the job's nodes and the policy say: which node a pod is on, who
// may ask for a connection, and which connections are permitted.
type control struct {
	checks checks
	policy Policy
	nodes  []Node
	self   int
	keys   [][]byte // of connections from each node
}

func newControl(c Config, with checks) (*control, error) {
	made := &control{checks: with, policy: c.Policy, nodes: c.Nodes, self: c.Self, keys: make([][]byte, len(c.Nodes))}
	for i := range c.Nodes {
		var err error
		if made.keys[i], err = pairKey(c.Key, i, c.Self); err != nil {
			return nil, fmt.Errorf("derive the key from node %d: %w", i, err)
		}
	}
	return made, nil
}

// nodeOf returns the node of a pod's address, or -1.
func (c *control) nodeOf(address netip.Addr) int {
	for i, n := range c.nodes {
		for _, prefix := range n.Prefixes {
			if prefix.Contains(address) {
				return i
			}
		}
	}
	return -1
}

// keyFrom returns the key of connections from a node, or nil if the job has no such node.
func (c *control) keyFrom(node int) []byte {
	if node < 0 || node >= len(c.keys) {
		return nil
	}
	return c.keys[node]
}

// permits reports whether the policy certainly permits a connection.
func (c *control) permits(from netip.Addr, to netip.AddrPort, outside bool) bool {
	if outside {
		return c.policy.PermitsOutside(from, to)
	}
	return c.policy.Permits(from, to)
}

// permitsRecord works like permits, for a switched socket.
func (c *control) permitsRecord(r *record) bool {
	from, to := r.local.addrPort(), r.target.addrPort()
	if from == to { // the server's end
		from = r.peer.addrPort()
	}
	return c.permits(from.Addr(), to, r.outside)
}

// check returns nil if a preamble asks for a connection from a pod of the asking node to a
// pod of this node.
func (c *control) check(p preamble) error {
	switch {
	case p.to != c.self:
		return fmt.Errorf("node %d asks node %d", p.from, p.to)
	case !c.checks.owns(p.from, c.nodeOf(p.source.Addr())):
		return fmt.Errorf("node %d asks for a connection from %s", p.from, p.source)
	case c.nodeOf(p.target.Addr()) != c.self:
		return fmt.Errorf("node %d asks for a connection to %s", p.from, p.target)
	case p.source.Addr().Is4() != p.target.Addr().Is4():
		return fmt.Errorf("node %d asks for a connection from %s to %s", p.from, p.source, p.target)
	}
	return nil
}
