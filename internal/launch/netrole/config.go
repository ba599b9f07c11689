package netrole

import (
	"net/netip"

	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/supervisor"
)

// Arg starts this program again as the net role. main calls Main then.
const Arg = "net-role"

// Descriptors of the net role. The others have names.
const (
	notifyFD = supervisor.NotifyFD
	configFD = notifyFD + 1
)

// Names of the files that the role inherits.
const (
	fdTUN        = "tun"
	fdQueue      = "queue"       // a queue of the overlay
	fdPackets    = "packets"     // the socket of a queue
	fdStreams    = "streams"     // the listener for streams between the nodes
	fdPublished  = "published"   // the listener of a published port
	fdListener   = "listener"    // a listener of the Switch
	fdContainers = "containers"  // the listener for containers
	fdInside     = "inside"      // to the node role, for sockets in pods
	fdState      = "state"       // the memory that outlives a Switch
	fdLifeline   = "lifeline"    // breaks when the supervisor ends
	fdServices   = "service map" // to the node role, for the service map
	fdChanges    = "changes"     // the pipe with changes of the network between the nodes
)

// config is the configuration of the net role.
type config struct {
	Gateway netip.Addr
	// Node is the node's IPv4 address.
	Node    netip.Addr
	Cluster []netip.Prefix
	// Refuse holds the ranges that pods must not reach, as the user demands.
	Refuse []netip.Prefix
	MTU    int
	// Debug is set if the user keeps the logs.
	Debug bool
	// Queues is the number of queues of the overlay, or 0 on a single node.
	Queues  int
	Overlay hostnet.Overlay
	// Published holds the destinations of the published ports of this host.
	Published []netip.AddrPort
	// Switch is nil if this host has no Switch.
	Switch *switchConfig
}
