// Package cluster is berth's vocabulary: what a user asks for (Spec), and the
// pure plan that follows from it and from what the allocation offers (Plan):
// names, addresses, paths, sizes. Every other package may import it. It imports none
// of them, touches no file, opens no socket and makes no system call.
//
// docs/glossary.md explains the words plan and offer.
//
// Read spec.go first, with mount.go, publish.go and device.go for the values of its
// options. Then design.go, which makes the plan of plan.go from the offers of all
// nodes, with names.go, addresses.go and ipv6.go.
package cluster
