package launch

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/fastpath"
)

// hasSwitch reports whether this host has a Switch. On a single node, the Switch
// serves connections to the outside.
func (r *run) hasSwitch() bool {
	if r.members != nil {
		return r.members.data.Fast
	}
	fast, err := hostnet.WantsFastPath(r.Spec.Network.FastPath)
	if fast {
		// Where there is no such device, there is no net role either.
		var tun *os.File
		if tun, err = os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err == nil {
			tun.Close()
		}
	}
	if err != nil {
		r.Log.Debug("connections of pods are not made by the host: " + err.Error())
	}
	return fast && err == nil
}

// switching holds what outlives the Switch of the node, which is part of the net
// role. The Switch receives sockets in the pods' namespaces, and the service map,
// from the node role over two pairs of sockets.
type switching struct {
	config switchConfig
	// listeners belong to members, containers to the sandbox.
	listeners    []*os.File
	containers   *os.File
	inside, line [2]*os.File // the net role's end, the node role's end
	state        *os.File
	alive, alarm *os.File // reading and writing end of the pipe that shows that this process lives
}

// switchConfig is the configuration of the Switch.
type switchConfig struct {
	Nodes     []fastpath.Node
	Self      int
	Key       []byte
	Pods      []netip.Prefix
	Listeners int
}

// newSwitching prepares a Switch. t is nil on a single node.
func newSwitching(plan cluster.Plan, t *members, containers *os.File) (*switching, error) {
	s := &switching{containers: containers}
	var nodes [][]netip.AddrPort
	if t != nil {
		s.listeners, nodes = t.sockets.Switches, t.mesh.Switches
		s.config.Self, s.config.Key = t.mesh.Self, t.mesh.Key
	} else {
		nodes = make([][]netip.AddrPort, 1)
		s.config.Key = make([]byte, 32)
		_, _ = rand.Read(s.config.Key)
	}
	s.config.Listeners = len(s.listeners)
	for _, family := range plan.Addresses.Families() {
		s.config.Pods = append(s.config.Pods, family.Pods)
	}
	for i, member := range plan.Members {
		// Skip the nodes' own addresses, which are no pods' addresses.
		pods := slices.DeleteFunc(slices.Clone(member.Prefixes), netip.Prefix.IsSingleIP)
		s.config.Nodes = append(s.config.Nodes, fastpath.Node{Endpoints: nodes[i], Prefixes: pods})
	}
	var err error
	for _, step := range []func() error{
		func() error { s.inside[0], s.inside[1], err = linux.PacketFiles("fast-path"); return err },
		func() error { s.line[0], s.line[1], err = linux.PacketFiles("directory"); return err },
		func() error { s.state, err = fastpath.NewState(); return err },
		func() error { s.alive, s.alarm, err = os.Pipe(); return err },
	} {
		if err := step(); err != nil {
			s.close()
			return nil, fmt.Errorf("prepare the fast path: %w", err)
		}
	}
	return s, nil
}

// netFiles returns what the net role inherits, in this order.
func (s *switching) netFiles() []*os.File {
	return append(slices.Clone(s.listeners), s.containers, s.inside[0], s.state, s.alarm, s.line[0])
}

// nodeFiles returns what the node role inherits after its notify descriptor.
// nodeArgs returns the arguments with their numbers.
func (s *switching) nodeFiles() []*os.File {
	if s == nil {
		return nil
	}
	return []*os.File{s.inside[1], s.line[1]}
}

func (s *switching) nodeArgs() []string {
	if s == nil {
		return nil
	}
	return []string{"--fast-path-fd", "4", "--directory-fd", "5"}
}

// release ends the processes that keep the descriptors of a Switch that died.
func (s *switching) release() {
	if s != nil && s.alive != nil {
		s.alive.Close()
	}
}

// close may be called twice, and on nil.
func (s *switching) close() {
	if s == nil {
		return
	}
	for _, file := range []*os.File{s.inside[0], s.inside[1], s.line[0], s.line[1], s.state, s.alive, s.alarm} {
		if file != nil {
			file.Close()
		}
	}
}
