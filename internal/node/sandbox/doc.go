// Package sandbox makes the namespaces in which a node of the cluster lives,
// and starts processes in them, without root.
//
// Three processes take part, all of them this program, started again:
//
//	supervisor   calls Start; stays in the host's namespaces
//	 └─ janitor  owns the user namespace, and nothing else; when the supervisor's
//	     │       pipe closes it ends init and removes the run's directories,
//	     │       files of subordinate uids included
//	     └─ init PID 1 of all other namespaces; starts what the supervisor asks
//	             for, reaps, reports. Its end is the end of everything inside.
//
// So whichever process dies, by whatever signal, everything else follows: init
// dies with the janitor (parent-death signal), the PID namespace with init, and
// the janitor finishes when the supervisor's end of the pipe is gone.
//
// What runs inside, and in which order, is not this package's business.
package sandbox
