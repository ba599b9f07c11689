// Package members connects the nodes of a run: how they find each other and are
// admitted, how they get their plans, and what happens when one is lost, returns,
// or takes the run over. A run on one node has one member. The start of a node
// and the workload do not belong here.
//
// docs/glossary.md explains the words head, hello and welcome.
//
// Read roster.go, network.go and members.go first. gather.go is the head's view until the
// plans are sent, follow.go and headconn.go are that of the other nodes. monitor.go and
// importrequests.go are the head's view while the cluster runs, losses.go holds messages
// about lost nodes. seats.go and seated.go are the head's view of nodes of other jobs, pilot.go is
// theirs; returning.go and wayback.go are about their return to the next head. failover.go
// is about the head's successor. local.go has the members that share a host.
package members
