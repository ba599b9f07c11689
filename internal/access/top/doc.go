// Package top shows a cluster on one screen: the time left, nodes, pods, their
// usage, the network, images in transfer, and problems.
//
// A snapshot holds the data of one moment, View renders it as text, and Run puts
// the text on a terminal again and again. Connecting to the cluster does not
// belong here.
package top
