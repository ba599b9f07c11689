// Package vxlan makes the kernel match a State: bridges, tunnels, the interfaces of pods, routes
// and nftables rules. A caller may apply a State any number of times; a State without networks
// removes everything. The package knows neither jobs nor etcd.
//
// On a node, a user's network is a bridge with the interfaces of the user's pods and one tunnel.
// Nothing is learned from packets: the State lists all addresses, and a frame to any other
// address is dropped.
//
// Read state.go first, then apply.go, which calls the rest: namespace.go, peers.go, routes.go,
// rules.go, gateways.go, ipv6.go and routed.go. rules.go begins with the type that writes nftables
// rules, in the syntax of writer.go.
package vxlan
