// Package egress carries packets of pods to the outside by ordinary sockets of the user.
// Run reads packets from a TUN device. A user-mode TCP/IP stack terminates them, and each
// flow continues through a socket of the host's network namespace.
//
// Pods reach the addresses that the user's own processes reach, except the host's
// loopback, link-local addresses (where clouds serve credentials), and the cluster's own
// ranges. Refused flows are answered and counted.
//
// Package sandbox makes the device, addresses and routes inside the node's namespace, and
// package overlay carries packets between nodes.
//
// Reading order: config.go, policy.go, egress.go (Run), link.go (the TUN device), tcp.go,
// attempts.go, relay.go, publish.go; flows.go, udp.go, echo.go, icmp.go; dns.go,
// resolvers.go; counters.go. Package share divides connections and queries among the pods.
package egress
