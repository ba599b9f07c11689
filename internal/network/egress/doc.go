// Package egress carries packets of pods to the outside world with what an
// ordinary user has: sockets. Run is the other end of a TUN device; a
// user-mode TCP/IP stack terminates what comes out of it, and every flow goes
// on through a socket of the host's network namespace.
//
// The outside of a pod is what the user's own processes reach, less the host's
// loopback, link-local addresses (where clouds serve credentials), and the
// cluster's own ranges. What is refused is answered, and counted.
//
// Making the device, addresses and routes inside the node's namespace does not
// belong here (package sandbox), nor do packets between nodes.
package egress
