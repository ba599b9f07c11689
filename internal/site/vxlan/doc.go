// Package vxlan makes what a State says true in the kernel, as often as it is
// asked: bridges, tunnels, the pods' interfaces, routes and nftables rules. It
// knows neither jobs nor etcd. A State without networks leaves nothing.
//
// On a node, the network of a user is a bridge, on which hang the interfaces of
// the user's pods and one tunnel. Nothing is learned from packets: who is where
// is known, and a frame to anybody else goes nowhere.
package vxlan
