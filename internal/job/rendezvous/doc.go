// Package rendezvous lets the tasks of one job step, one per node, find and trust
// each other. The head, which is the task of the first node, listens, and the
// others join. Both sides prove that they belong to the same step of the same user.
// The package needs no shared folder, and puts no secret in an argument, in Slurm's
// records or on a disk.
//
// The ports are computed from the job, so no configuration is needed. Connections
// use TLS 1.3, and the certificate proves nothing. Instead, each side sends a
// credential that contains a value of this connection. It is made by munge, with a
// shared key, or signed with the node's key. docs/design/0005-rendezvous.md has the
// protocol and its reasons.
//
// Once accepted, a Peer is a channel of JSON messages that notices the loss of the
// other side. The caller defines the messages and handles the loss of a node.
//
// docs/glossary.md explains the word rendezvous.
//
// Read config.go and claim.go first, then head.go and await.go for the head,
// join.go for the other nodes, and peer.go for the channel. munge.go, preshared.go
// and signed.go are the three kinds of credentials.
package rendezvous
