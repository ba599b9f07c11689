// Package netrole is the net role of a node: the process in the host's network
// namespace that carries packets between pods and the outside, and makes
// connections of pods. What happens to packets and connections belongs to the
// packages of network.
//
// The role has two halves, in two processes. The parent half opens and holds what
// must outlive the role, and starts it: parent.go, held.go and published.go. The
// child half is the role itself: child.go, switch.go, notices.go and counts.go.
// config.go has the messages between the halves.
//
// docs/glossary.md explains the word Switch.
package netrole
