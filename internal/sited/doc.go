// Package sited is berthd, the daemon of the site network: it answers on a
// local socket, keeps the addresses in etcd, and has internal/vxlan make true
// on this node what is known there.
package sited
