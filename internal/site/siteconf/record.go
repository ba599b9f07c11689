package siteconf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// Prefix is the prefix of all keys in etcd. Its number is the version of the format.
//
//	/berth/site/1/nodes/NODE             where the tunnels of a node end
//	/berth/site/1/tunnels/NODE           the port of its tunnels
//	/berth/site/1/users/OWNER            the identifier of a user's network
//	/berth/site/1/networks/OWNER/pods/ID Allocation: the pods of a job, or the pod for sessions
//	/berth/site/1/networks/OWNER/at/ID/AFTER/NODE
//	                                     the address of a pod, if CNI plugins assign addresses
//	/berth/site/1/networks/OWNER/named/ID/AFTER/names
//	                                     the names that its user gave it; empty after they were
//	                                     removed
//	/berth/site/1/gateways/NODE          the address of a gateway, as long as it forwards
//	/berth/site/1/left/ID/AFTER/NODE     the job has left this node
//	/berth/site/1/guard                  changes with every allocation
//	/berth/site/1/line/...               the queue of nodes that wait to allocate
//	/berth/site/1/collector/...          the nodes that stand for election as collector
//	/berth/site/1/born                   Unix time of the first key, for people
//	/berth/site/1/young                  exists while forgotten addresses may be in use
//
// OWNER is a user's number or a group's name. A reader ignores other keys below
// networks/OWNER/: a newer berthd may have written them.
const Prefix = "/berth/site/1/"

// Allocation holds all pods of a job, which get their addresses at once, or the pod
// for a user's sessions on a host.
type Allocation struct {
	Job uint32 `json:"job"`
	// Login is the host of the sessions. If it is set, there is no job.
	Login string `json:"login,omitempty"`
	UID   uint32 `json:"uid"`
	User  string `json:"user"`
	// Group is the group that shares the network, or "".
	Group string `json:"group,omitempty"`
	// Name is the job's name in Slurm.
	Name string `json:"name"`
	// Reserved reports that Name is the name of a host. In the DNS the job has only its number.
	Reserved bool   `json:"reserved,omitempty"`
	VNI      uint32 `json:"vni"`
	Pods     []Pod  `json:"pods"`
	// After is etcd's revision at the previous allocation, after which this one was made. No two allocations
	// have the same ID and After.
	After int64 `json:"after"`
	// Problem is the reason why the job got no pods.
	Problem string `json:"problem,omitempty"`
	// Final reports that the job gets no pods later either.
	Final bool `json:"final,omitempty"`
}

// Pod is the pod of a job on one node.
type Pod struct {
	Node string `json:"node"`
	// Address is invalid if CNI plugins assign addresses. They do so later, and only
	// on the node.
	Address netip.Addr `json:"address"`
	// Via is the address of the node.
	Via netip.Addr `json:"via"`
}

// ID returns the unique name of the allocation: the number of its job, or the user
// and host of its sessions.
func (a Allocation) ID() string {
	if a.Login != "" {
		return fmt.Sprintf("login-%d-%s", a.UID, a.Login)
	}
	return strconv.FormatUint(uint64(a.Job), 10)
}

// Owner returns the owner of the allocation's network: the group's name, or the user's number,
// which no group can have as its name.
func (a Allocation) Owner() string {
	if a.Group != "" {
		return a.Group
	}
	return strconv.FormatUint(uint64(a.UID), 10)
}

// With returns a copy of the allocation with another address for the pod on a node. An invalid
// address changes nothing.
func (a Allocation) With(node string, address netip.Addr) Allocation {
	if !address.IsValid() {
		return a
	}
	a.Pods = slices.Clone(a.Pods)
	for i := range a.Pods {
		if a.Pods[i].Node == node {
			a.Pods[i].Address = address
		}
	}
	return a
}

// On returns the pod on a node, and reports whether there is one.
func (a Allocation) On(node string) (Pod, bool) {
	for _, pod := range a.Pods {
		if pod.Node == node {
			return pod, true
		}
	}
	return Pod{}, false
}

// MAC returns the Ethernet address of a pod. It is locally administered and contains
// the IP address, so it needs no lookup.
func MAC(address netip.Addr) net.HardwareAddr {
	ip := address.As4()
	return net.HardwareAddr{0x02, 0x62, ip[0], ip[1], ip[2], ip[3]}
}

// Number returns an IPv4 address as a number.
func Number(address netip.Addr) uint32 {
	ip := address.As4()
	return binary.BigEndian.Uint32(ip[:])
}

// Address returns the IPv4 address for a number.
func Address(number uint32) netip.Addr {
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], number)
	return netip.AddrFrom4(ip)
}
