// Package fastpath switches TCP sockets of pods to the host's network: the
// kernel asks it (seccomp user notification) about each connect and accept of
// a pod's processes, and it answers with a socket that is connected to the
// other node's host directly, or to the outside. Whatever is not certain stays where it is, on
// the overlay. docs/design/0010-fast-path.md has the reasons.
//
// A Switch runs in the host's network namespace, as the user, without any
// capability there. It knows addresses and nodes; what a Service is and what a
// policy allows it asks through the interfaces ServiceMap and Policy. Installing
// the filter in a container is the runtime's work.
package fastpath
