// Package nametable defines the file that CoreDNS reads to answer for the pods of the
// site network. internal/site/berthd writes the file; programs/coredns, a module of its
// own, reads it and compiles this package through a symbolic link. So the package
// imports only the standard library. Looking names up does not belong here.
package nametable

import "net/netip"

// Table holds all pods that a node knows, with their DNS labels. A name server of an
// earlier version reads the file too, so the meaning of a field never changes.
type Table struct {
	// Cluster is the domain of all names, without a final dot. It is never empty.
	Cluster string `json:"cluster"`
	// Range contains the IPv4 addresses of all pods.
	Range netip.Prefix `json:"range"`
	// IPv6 is a /96. If it is valid, each pod has a second address in it, which ends in the
	// 32 bits of the pod's first address.
	IPv6 netip.Prefix `json:"ipv6,omitzero"`
	Pods []Pod        `json:"pods"`
}

// Pod is the pod of a job, or of a user's sessions, on one node.
type Pod struct {
	Address netip.Addr `json:"address"`
	// Network identifies the network of the pod's user, or of the group that shares one.
	Network uint32 `json:"network"`
	UID     uint32 `json:"uid"`
	// User and Name are DNS labels. Number is the number of the job, or 0.
	User   string `json:"user"`
	Name   string `json:"name"`
	Number uint32 `json:"number,omitempty"`
	// Index is the position of the pod's node in the job.
	Index int `json:"index"`
	// After orders allocations by the time of their creation.
	After int64 `json:"after"`
	// Names lists the names that the user has given the job. Only the job's first pod has them.
	Names []string `json:"names,omitempty"`
	// Served lists the names under which runs in this pod offer services.
	Served []string `json:"served,omitempty"`
}
