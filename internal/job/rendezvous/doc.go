// Package rendezvous lets the tasks of one job step, one per node, find and
// trust each other: the task of the first node, the head, listens, the others
// join, and both prove that they belong to the same step of the same user. It
// needs no shared folder, and puts no secret in an argument, in Slurm's records
// or on a disk.
//
// The ports follow from the job, so nobody has to be told one. Connections are
// TLS 1.3; the certificate says nothing, what counts is a credential (of munge,
// made with a key that all have, or signed with the node's own) which holds a
// value of this very connection. docs/design/0005-rendezvous.md has the
// protocol and its reasons.
//
// After that a Peer is a channel of JSON messages that notices the loss of the
// other side. What the messages say, and what becomes of a run that loses a
// node, is the caller's.
package rendezvous
