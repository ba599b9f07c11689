// Package top shows a cluster on one screen: how much time is left, nodes, pods,
// what they use, the network, images on their way, and what went wrong.
//
// A Snapshot is what was read at one moment, View is text made of it, and Run puts
// that on a terminal again and again. How a cluster is reached is not decided
// here.
package top
