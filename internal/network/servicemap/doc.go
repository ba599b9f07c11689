// Package servicemap is what leads connections of pods past the network between
// the nodes: which pods a Service stands for, and what policies permit. The
// role that watches the API tells it (State) to the one that makes the
// connections, which has no way to the API, over a pair of packet sockets whose
// ends outlive both.
//
// How a Service's endpoints are chosen from the API's objects is for the
// teller; what a switched socket is, for package fastpath.
package servicemap
