package netrole

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/network/fastpath"
)

// Held holds what outlives the Switch of the node, which is part of the net role.
// The Switch receives sockets in the pods' namespaces, and the service map, from
// the node role over two pairs of sockets.
type Held struct {
	config switchConfig
	// listeners belong to the caller of Hold, containers to the sandbox.
	listeners        []*os.File
	containers       *os.File
	inside, services [2]*os.File // the net role's end, the node role's end
	state            *os.File
	alive, lifeline  *os.File // reading and writing end of the pipe that shows that this process lives
}

// switchConfig is the configuration of the Switch.
type switchConfig struct {
	Nodes []fastpath.Node
	Self  int
	Key   []byte
	Pods  []netip.Prefix
}

// Hold prepares a Switch. listeners accept its connections from other nodes, and
// containers is the listener for containers. On a single node, places is nil and
// there are no listeners.
func Hold(plan cluster.Plan, places *hostnet.Places, listeners []*os.File, containers *os.File) (*Held, error) {
	h := &Held{listeners: listeners, containers: containers}
	if places != nil {
		h.config.Self, h.config.Key = places.Self()
	} else {
		h.config.Key = make([]byte, 32)
		_, _ = rand.Read(h.config.Key)
	}
	for _, family := range plan.Addresses.Families() {
		h.config.Pods = append(h.config.Pods, family.Pods)
	}
	for _, place := range plan.Places() {
		// Skip the nodes' own addresses, which are no pods' addresses.
		pods := slices.DeleteFunc(slices.Clone(place.Prefixes), netip.Prefix.IsSingleIP)
		h.config.Nodes = append(h.config.Nodes, fastpath.Node{Prefixes: pods})
	}
	var err error
	for _, step := range []func() error{
		func() error { h.inside[0], h.inside[1], err = linux.PacketFiles("fast-path"); return err },
		func() error { h.services[0], h.services[1], err = linux.PacketFiles("service-map"); return err },
		func() error { h.state, err = fastpath.NewState(); return err },
		func() error { h.alive, h.lifeline, err = os.Pipe(); return err },
	} {
		if err := step(); err != nil {
			h.Close()
			return nil, fmt.Errorf("prepare the fast path: %w", err)
		}
	}
	return h, nil
}

// configOf returns the configuration of a Switch that begins when the Switches of the nodes
// listen at these addresses.
func (h *Held) configOf(switches [][]netip.AddrPort) *switchConfig {
	config := h.config
	config.Nodes = slices.Clone(config.Nodes)
	for i, endpoints := range switches {
		config.Nodes[i].Endpoints = endpoints
	}
	return &config
}

// addTo adds the files that the net role inherits.
func (h *Held) addTo(fds *linux.FDTable) {
	fds.Add(fdListener, h.listeners...)
	fds.Add(fdContainers, h.containers)
	fds.Add(fdInside, h.inside[0])
	fds.Add(fdState, h.state)
	fds.Add(fdLifeline, h.lifeline)
	fds.Add(fdServices, h.services[0])
}

// ForNodeRole returns the files that the node role inherits, or nil if h is nil.
func (h *Held) ForNodeRole() []supervisor.Passed {
	if h == nil {
		return nil
	}
	return []supervisor.Passed{{Flag: "--fast-path-fd", File: h.inside[1]}, {Flag: "--service-map-fd", File: h.services[1]}}
}

// release ends the processes that keep the descriptors of a Switch that died.
func (h *Held) release() {
	if h != nil && h.alive != nil {
		h.alive.Close()
	}
}

// Close closes the files that Hold opened. It may be called twice, and on nil.
func (h *Held) Close() {
	if h == nil {
		return
	}
	for _, file := range []*os.File{h.inside[0], h.inside[1], h.services[0], h.services[1], h.state, h.alive, h.lifeline} {
		if file != nil {
			file.Close()
		}
	}
}
