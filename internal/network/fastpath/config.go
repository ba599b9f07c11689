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
	// Endpoints lists the host's addresses where its Switch listens. It is empty without
	// a Switch.
	Endpoints []netip.AddrPort
	// Prefixes hold the addresses of its pods.
	Prefixes []netip.Prefix
}

// ServiceMap resolves the targets of connections. A pod's connect waits for its
// methods, which must not block.
type ServiceMap interface {
	// Resolve returns the possible targets of a connection to an address, and false
	// if it does not know them for certain.
	Resolve(to netip.AddrPort) (Route, bool)
	// Outside reports whether an address that Resolve does not know is certainly
	// outside the cluster, and pods may reach it like the user's processes.
	Outside(to netip.AddrPort) bool
}

// Route holds the possible targets of a connection.
type Route struct {
	// Targets lists equally good ports of pods. It is empty if the address belongs to
	// a pod.
	Targets []netip.AddrPort
	// Sticky is the timeout of session affinity: until then the next connection of the
	// same pod has the same target. It is 0 without affinity.
	Sticky time.Duration
}

// Policy decides which connections may be switched. Its methods must not block.
type Policy interface {
	// Permits reports whether a connection is certainly permitted. Both nodes call it
	// before a connection is made. Other connections stay on the overlay, where the
	// kernel filters their packets.
	Permits(from netip.Addr, to netip.AddrPort) bool
	// PermitsOutside is like Permits, for a target outside the cluster.
	PermitsOutside(from netip.Addr, to netip.AddrPort) bool
}

// Config configures a Switch, which takes ownership of all files.
type Config struct {
	Nodes []Node
	Self  int
	// Key is the job's secret. Other keys are derived from it.
	Key []byte
	// Listeners are the TCP sockets of Nodes[Self].Endpoints, made by Listen. A host
	// has 28,000 ports for connections to each, and keeps them for a minute. The only
	// node of a cluster needs none.
	Listeners []*net.TCPListener
	// Containers is a unix socket. The runtime sends the descriptor of each container's
	// filter to it (linux.seccomp.listenerPath of the OCI runtime specification), with
	// Metadata of the pod.
	Containers *net.UnixListener
	// Inside is connected to ServeInside.
	Inside *net.UnixConn
	// State outlives the process: the memory file of NewState.
	State *os.File
	// Lifeline is the writing end of a pipe. Its reading end closes when nobody will
	// start a successor.
	Lifeline *os.File

	ServiceMap ServiceMap
	Policy     Policy
	Log        *slog.Logger

	// Timeout limits the wait for the other node, after which a call is left to
	// the overlay; NonblockTimeout is the same for a non-blocking socket: longer than the
	// 200 ms after which TCP sends a lost packet again.
	Timeout, NonblockTimeout time.Duration

	// Busy is a number of connections per second. A port with as many short
	// connections is left to the overlay. 0 disables that.
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
