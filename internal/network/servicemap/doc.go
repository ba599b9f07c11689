// Package servicemap leads connections of pods past the overlay: it knows which
// pods are behind a Service, and which connections the policies permit. The node
// role watches the API and sends a State to the net role, which makes the
// connections and cannot reach the API. They talk over a pair of packet sockets
// that outlives both roles.
//
// The choice of a Service's endpoints belongs to the sender (kube/node), and
// switched sockets to package fastpath.
package servicemap
