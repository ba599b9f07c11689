package fastpath

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"
)

// Node is a host of the job.
type Node struct {
	// Endpoints are where its Switch takes connections, in the host's network;
	// none where it has no Switch.
	Endpoints []netip.AddrPort
	// Prefixes hold the addresses of its pods.
	Prefixes []netip.Prefix
}

// ServiceMap knows where a pod's connection leads. It is asked in the middle of
// a connect and must not wait for anything.
type ServiceMap interface {
	// Resolve returns where a connection to an address may lead, and false where
	// that is not certain.
	Resolve(to netip.AddrPort) (Route, bool)
	// Outside tells whether an address is certainly none of the cluster's, and one
	// that pods may reach as the user's processes on the host do. It is asked
	// about what Resolve does not know.
	Outside(to netip.AddrPort) bool
}

// Route is where a pod's connection may lead.
type Route struct {
	// Targets are pods with their ports, of which one is as good as another;
	// none where the address is a pod's own.
	Targets []netip.AddrPort
	// Sticky is for how long the next connection of the same pod leads to the
	// same target; 0 where it need not.
	Sticky time.Duration
}

// Policy decides which connections may be switched. It must not wait for
// anything.
type Policy interface {
	// Permits is asked on both nodes, before a connection is made. Connections
	// that it does not permit stay on the overlay, where packets are filtered:
	// so false is right wherever it is not certain.
	Permits(from netip.Addr, to netip.AddrPort) bool
	// PermitsOutside is the same for what is Outside.
	PermitsOutside(from netip.Addr, to netip.AddrPort) bool
}

// Config is what a Switch is made of. It takes over all files.
type Config struct {
	Nodes []Node
	Self  int
	// Key is the job's secret, from which all others are derived.
	Key []byte
	// Listeners are the TCP sockets of Nodes[Self].Endpoints, made by Listen. A host
	// has 28,000 ports for connections to each, and keeps them for a minute. The only
	// node of a cluster needs none.
	Listeners []*net.TCPListener
	// Containers is the unix socket at which the runtime delivers the
	// descriptor of a container's filter (linux.seccomp.listenerPath of the OCI
	// runtime specification), with Metadata of the pod.
	Containers *net.UnixListener
	// Inside leads to ServeInside.
	Inside *net.UnixConn
	// State outlives the process: the memory file of NewState.
	State *os.File
	// Lifeline is the writing end of a pipe that closes when nobody will start
	// a successor.
	Lifeline *os.File

	ServiceMap ServiceMap
	Policy     Policy
	Log        *slog.Logger

	// Timeout limits the wait for the other node, after which a call is left to
	// the overlay; NonblockTimeout is the same for a non-blocking socket: longer than the
	// 200 ms after which TCP sends a lost packet again.
	Timeout, NonblockTimeout time.Duration

	// Busy is from how many connections a second on a port is left to the overlay
	// where its connections prove to be short; 0 is never.
	Busy int
}

// Default returns a Config whose limits are set.
func Default() Config {
	return Config{Timeout: 2 * time.Second, NonblockTimeout: 300 * time.Millisecond, Busy: 300}
}

// Validate returns all that is wrong at once.
func (c Config) Validate() error {
	var problems []error
	require := func(ok bool, text string) {
		if !ok {
			problems = append(problems, errors.New(text))
		}
	}
	require(c.Self >= 0 && c.Self < len(c.Nodes) && len(c.Nodes) <= 1<<16, fmt.Sprintf("node %d is none of %d", c.Self, len(c.Nodes)))
	require(len(c.Key) >= 16, "the key is shorter than 16 bytes")
	require(len(c.Listeners) > 0 || len(c.Nodes) == 1, "there is no listener for other nodes")
	require(c.Containers != nil, "there is no socket for containers")
	require(c.Inside != nil, "there is no connection to the inside")
	require(c.State != nil, "there is no memory file for the state")
	require(c.Lifeline != nil, "there is no lifeline")
	require(c.ServiceMap != nil, "there is no service map")
	require(c.Policy != nil, "there is no policy")
	require(c.Log != nil, "there is no logger")
	require(c.Timeout > 0 && c.NonblockTimeout > 0, "the timeouts must be positive")
	return errors.Join(problems...)
}
