// Package sandbox makes the namespaces of a cluster's node and starts processes
// in them, without root.
//
// Three processes take part. All run this program, started again:
//
//	supervisor   calls Start; stays in the host's namespaces
//	 └─ janitor  holds only the user namespace; when the supervisor's pipe closes,
//	     │       it ends init and removes the run's directories, including files
//	     │       of subordinate uids
//	     └─ init PID 1 of all other namespaces; starts processes for the
//	             supervisor, reaps, reports. All processes inside end with it.
//
// Whichever process dies, by whatever signal, the others follow: init dies with
// the janitor (parent-death signal), the PID namespace with init, and the
// janitor finishes when the supervisor's end of the pipe closes.
//
// The package does not decide which processes run inside, or their order.
//
// docs/glossary.md explains the words janitor and lifeline.
//
// Read sandbox.go first, the supervisor's part, then janitor.go and init.go.
// protocol.go has their messages; mounts.go, network.go and cgroup.go set up the
// namespaces.
package sandbox
