package egress

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// Config configures Run: the addresses that egress forwards, and its limits.
type Config struct {
	// Gateway is the far end of the TUN device. It answers echo requests, and
	// on port 53 it is the host's own resolvers. Nothing else listens there.
	Gateway netip.Addr
	// Node is the node's address, which CoreDNS asks from. Only notices need it. It may
	// be invalid.
	Node netip.Addr
	// Cluster holds the ranges of pods, Services and nodes. Packets to them should not
	// reach the device, and are refused.
	Cluster []netip.Prefix
	// Refuse holds further ranges that pods may not reach. The host's loopback is always
	// refused.
	Refuse []netip.Prefix
	// Publish are the ports of the host that lead into the cluster.
	Publish []Published
	// MTU is the MTU of the TUN device, in bytes.
	MTU int
	// ResolvConf is the file with the host's resolvers.
	ResolvConf string

	// Connections bounds the TCP connections at one time, Flows the UDP and
	// echo flows. A connection is reset if it exceeds the limit or its pod's share. A flow
	// that exceeds the limit ends another one: of the pod with the most flows, the one that
	// has been idle longest.
	Connections, Flows int
	// Attempts bounds the connections that wait for an answer from the outside. At the
	// limit, a pod with few attempts replaces an attempt of the pod with the most, and the
	// SYNs of other pods are ignored until there is room.
	Attempts int
	// BufferBytes bounds what all TCP connections together hold for the pods'
	// side. The more connections there are, the less a new one gets, but
	// never less than 64 KiB each way.
	BufferBytes int
	// FlowIdle ends a UDP flow after this time without a packet; DNS and echo
	// flows end after at most 15 seconds.
	FlowIdle time.Duration
	// Dial bounds an attempt to connect. It ends earlier when the pod stops
	// repeating its SYN, which Linux does after about two minutes.
	Dial time.Duration

	// Counters, if not nil, receives the counts. It may be read at any time.
	Counters *Counters
	// Log gets a line per refused flow at level debug, and problems above.
	Log *slog.Logger
}

// Default returns a Config that lacks only the Gateway and the Cluster.
func Default() Config {
	return Config{
		Refuse:      linkLocal(),
		MTU:         65520,
		ResolvConf:  "/etc/resolv.conf",
		Connections: 4096,
		Flows:       4096,
		Attempts:    1024,
		BufferBytes: 64 << 20,
		FlowIdle:    2 * time.Minute,
		Dial:        130 * time.Second,
		Log:         slog.New(slog.DiscardHandler),
	}
}

// linkLocal returns the addresses whose meaning differs on every host. Clouds put
// their metadata services there, and these give the machine's credentials to any
// client.
func linkLocal() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("fd00:ec2::254/128"),      // AWS
		netip.MustParsePrefix("fd00:ec2::23/128"),       // AWS, identities of pods
		netip.MustParsePrefix("fd20:ce::254/128"),       // Google Cloud
		netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle Cloud
		netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway
		netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"),  // Akamai
		netip.MustParsePrefix("fd00:100::100:200/128"),  // Alibaba Cloud
		netip.MustParsePrefix("100.100.100.200/32"),     // Alibaba Cloud
	}
}

// Validate returns all problems at once.
func (c Config) Validate() error {
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !c.Gateway.IsValid() || c.Gateway.IsUnspecified() || c.Gateway.IsLoopback() {
		complain("gateway %v is no usable address", c.Gateway)
	}
	if c.MTU < 1280 || c.MTU > 65535 {
		complain("MTU %d is not between 1280 and 65535", c.MTU)
	}
	if c.ResolvConf == "" {
		complain("no file with resolvers named")
	}
	if c.Connections < 1 || c.Flows < 1 || c.Attempts < 1 || c.BufferBytes < 1 {
		complain("limits must be positive (connections %d, flows %d, attempts %d, buffer bytes %d)", c.Connections, c.Flows, c.Attempts, c.BufferBytes)
	}
	if c.FlowIdle <= 0 || c.Dial <= 0 {
		complain("times must be positive (flow idle %v, dial %v)", c.FlowIdle, c.Dial)
	}
	if c.Log == nil {
		complain("no logger")
	}
	return errors.Join(problems...)
}
