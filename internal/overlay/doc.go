// Package overlay carries IP packets between the nodes of a cluster: from the
// queues of a TUN device, which lives in the network namespace of a node, over
// UDP sockets of the host's network namespace, to the device of another node.
//
// A TCP packet of up to 64 KiB stays one all the way: the device hands it out
// uncut (IFF_VNET_HDR), the sender has the kernel cut it (UDP_SEGMENT) into
// datagrams that each stand for themselves, and the receiver, who gets most of
// them at once (UDP_GRO), glues what arrived in order together again.
//
// Each datagram proves that it is the peer's and new. Hellos find out which size
// of datagram gets through to whom; where none does, packets take streams of
// TCP. docs/design/0006-overlay.md says more.
//
// The package knows nodes and addresses. Pods, names and how the nodes found
// each other do not belong here.
package overlay
