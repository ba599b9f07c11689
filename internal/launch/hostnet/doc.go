// Package hostnet is a host's side of the networks between the nodes: where the
// addresses of the other hosts come from, and which sockets are open for their
// packets. Who
// serves the sockets does not belong here.
//
// Read addresses.go first, then ownnetwork.go, for jobs that have a network to
// themselves, and network.go, for the sockets.
package hostnet
