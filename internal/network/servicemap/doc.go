// Package servicemap decides which connections of pods may bypass the overlay: it
// knows the pods behind each Service, and the connections that policies permit. The
// node role watches the API and sends a State to the net role, which makes the
// connections and cannot reach the API. They communicate over a pair of packet
// sockets that outlives both roles.
//
// The sender (kube/node) selects the endpoints of a Service. Package fastpath
// switches sockets.
package servicemap
