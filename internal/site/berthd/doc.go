// Package berthd is berthd, the daemon of the site network: it answers on a
// local socket, keeps the addresses in etcd, and has internal/site/vxlan make true
// on this node what is known there.
package berthd
