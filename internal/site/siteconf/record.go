package siteconf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Prefix begins all keys of ours in etcd. The number is that of the format.
//
//	/berth/site/1/nodes/NODE             where the tunnels of a node end
//	/berth/site/1/users/OWNER            the identifier of a user's network
//	/berth/site/1/networks/OWNER/pods/ID Allocation: the pods of a job, or that of sessions
//	/berth/site/1/networks/OWNER/at/ID/AFTER/NODE
//	                                     the address of a pod, where CNI plugins give addresses
//	/berth/site/1/networks/OWNER/named/ID/AFTER/names
//	                                     names that its user has given it; none are left after
//	                                     they were taken back
//	/berth/site/1/gateways/NODE          the address of a gateway, as long as it forwards
//	/berth/site/1/left/ID/AFTER/NODE     it has left this node
//	/berth/site/1/guard                  changes with every allocation
//	/berth/site/1/line/...               who waits for a turn to allocate
//	/berth/site/1/born                   since when etcd has known anything, Unix time, for people
//	/berth/site/1/young                  as long as addresses that it has forgotten may be in use
//
// OWNER is a user's number, or a group's name. Whoever reads leaves alone what is below
// networks/OWNER/ and has another name than these: a newer berthd may have written it.
const Prefix = "/berth/site/1/"

// Allocation are all pods of a job, which get their addresses at once, or the one
// of a user's sessions on a host.
type Allocation struct {
	Job uint32 `json:"job"`
	// Login is the host of the sessions. Then there is no job.
	Login string `json:"login,omitempty"`
	UID   uint32 `json:"uid"`
	User  string `json:"user"`
	// Group is with whom the user shares a network, if with anybody.
	Group string `json:"group,omitempty"`
	// Name is the job's, as Slurm has it.
	Name string `json:"name"`
	VNI  uint32 `json:"vni"`
	Pods []Pod  `json:"pods"`
	// After is the revision of etcd after which it was made, so that no two are
	// alike.
	After int64 `json:"after"`
	// Problem is why the job has got no pods.
	Problem string `json:"problem,omitempty"`
}

// Pod is a job's on one node.
type Pod struct {
	Node string `json:"node"`
	// Address is none where CNI plugins give one, later and on the node alone.
	Address netip.Addr `json:"address"`
	// Via is the address of the node.
	Via netip.Addr `json:"via"`
}

// ID is what it is called among all: the number of its job, or whose sessions
// it is for, and where.
func (a Allocation) ID() string {
	if a.Login != "" {
		return fmt.Sprintf("login-%d-%s", a.UID, a.Login)
	}
	return strconv.FormatUint(uint64(a.Job), 10)
}

// Owner is whose network it is in: the group's name, or the user's number, which no
// group is called.
func (a Allocation) Owner() string {
	if a.Group != "" {
		return a.Group
	}
	return strconv.FormatUint(uint64(a.UID), 10)
}

// On returns the pod on a node.
func (a Allocation) On(node string) (Pod, bool) {
	for _, pod := range a.Pods {
		if pod.Node == node {
			return pod, true
		}
	}
	return Pod{}, false
}

// MAC is the Ethernet address of a pod. It follows from the IP address, so that
// nobody need ask for it: a locally administered one, with the whole address.
func MAC(address netip.Addr) net.HardwareAddr {
	ip := address.As4()
	return net.HardwareAddr{0x02, 0x62, ip[0], ip[1], ip[2], ip[3]}
}

// Number is an IPv4 address as a number.
func Number(address netip.Addr) uint32 {
	ip := address.As4()
	return binary.BigEndian.Uint32(ip[:])
}

// Address is the IPv4 address with a number.
func Address(number uint32) netip.Addr {
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], number)
	return netip.AddrFrom4(ip)
}
