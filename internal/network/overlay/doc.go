// Package overlay carries IP packets between the nodes of a cluster: from the
// queues of a TUN device in a node's network namespace, over UDP sockets in the
// host's network namespace, to the TUN device of another node.
//
// A TCP packet of up to 64 KiB crosses the host as one packet. The device hands
// it over unsegmented (IFF_VNET_HDR), the sender lets the kernel segment it
// (UDP_SEGMENT) into independent datagrams, and the receiver, which reads most of
// them at once (UDP_GRO), coalesces consecutive segments again.
//
// Every datagram carries a tag that authenticates the peer and prevents replay.
// Hello messages probe the largest datagram that reaches each peer. Where none
// does, packets travel in TCP streams. See docs/design/0006-overlay.md.
//
// The package knows nodes and addresses. Pods, names and the discovery of nodes
// do not belong here.
//
// docs/glossary.md explains the words overlay and seal.
//
// Start with overlay.go, then read queue.go, wire.go, udpsend.go, udpreceive.go
// and coalesce.go for the packets, and probe.go and stream.go for the paths.
package overlay
