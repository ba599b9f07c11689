// Package fastpath switches TCP sockets of pods to the host's network. The kernel
// asks it (seccomp user notification) about each connect and accept of a pod's
// processes. It answers with a socket that is connected directly to the other
// node's host, or to the outside. A connection that it is not certain about stays
// on the overlay. docs/design/0010-fast-path.md has the reasons.
//
// A Switch runs in the host's network namespace, as the user, without any
// capability there. It knows addresses and nodes. It asks ServiceMap for Services,
// and Policy for permissions. The runtime installs the filter in a container
// (Confine).
//
// docs/glossary.md explains the words fast path, Switch, trap, bell, parked
// connection, challenge, preamble and seal.
//
// # Outgoing connections
//
// A connecting (outbound.go) has one of these states. Its record holds a stage, at
// which a successor resumes after a crash (takeover.go, resume.go).
//
//	state      event                        action                         next
//	new        plan succeeds, target a pod  start: take a connection       challenge
//	new        plan succeeds, outside       start: reach                   outside
//	new        plan finds a reason          leave                          overlay
//	challenge  16 bytes                     ask: send the preamble         answer
//	challenge  closed, was idle             next: take another one         challenge
//	challenge  closed, was fresh            avoid the node                 overlay
//	answer     verdictConnected             install(0)                     replacing
//	answer     verdictRefused               answer ECONNREFUSED            done
//	answer     verdictOverlay, bad seal     fallBack                       overlay
//	outside    connected                    install(0)                     replacing
//	outside    non-blocking, or deadline    install(EINPROGRESS)           replacing
//	outside    host lacks ports or memory   fallBack                       overlay
//	outside    other error                  fail: answer the error         done
//	challenge, answer
//	           deadline, pending signal     fallBack                       overlay
//	any        caller is gone               cancel                         done
//	replacing  descriptor replaced          report                         switched
//	replacing  not permitted any more       fallBack                       overlay
//	replacing  cannot replace               answer the error, or cancel    done
//	overlay    target is a Service          connect to the chosen pod      done
//	overlay    otherwise                    let the kernel do the call     done
//	switched   connect again                report, if that was lost;      switched
//	                                        reportOutcome, if outside;
//	                                        else EISCONN
//	switched   policy forbids it            Cut: reset                     done
//
// The states replacing and overlay last only while the lock is held, and switched is
// a record of the Switch, so connState does not have them.
//
// # Incoming connections
//
// An incoming (incoming.go) has one of these states. A connection of the overlay, which
// the program's accept returns, begins in delivering.
//
//	state      event                        action                         next
//	pending    valid preamble, permitted    ring a bell at the listener    ringing
//	pending    no such pod, not permitted   refuse: verdictOverlay         done
//	pending    invalid, too late            drop                           done
//	ringing    listener reached             answer verdictConnected, park  parked
//	ringing    no listener                  refuse: verdictRefused         done
//	ringing    its queue is full            refuse: verdictOverlay         done
//	ringing    the other node has closed    close                          done
//	ringing    the pod's processes ended    refuse: reset if promised      done
//	parked     the pod accepts the bell     takeRung                       delivering
//	parked     the listener has closed      ring                           ringing
//	parked     policy forbids it            forbid: reset                  done
//	parked     the pod's processes ended    podEnded: reset                done
//	delivering not permitted any more       reset                          done
//	delivering the caller has it            close our descriptor           done
//	delivering the caller was interrupted   keep: ring                     ringing
//
// Once the other node was answered, a connection is promised: refuse resets it, and it is
// parked even while the listener's queue is full or there is no bell.
//
// # Reading order
//
// A file uses the files after it, and few of the files before it:
//
//   - switch.go (a Switch and its parts), takeover.go and resume.go (after a crash),
//     containers.go and calls.go (how calls arrive), cut.go, sweep.go
//   - outgoing: connect.go, conn.go, outside.go, replace.go, steer.go, outbound.go
//   - incoming: listener.go, deliver.go, waiting.go, pending.go, parked.go, incoming.go
//   - what both use: switched.go and known.go (switched sockets), affinity.go, habits.go,
//     peers.go, control.go (nodes and policy)
//   - the caller and its pod: sysinfo.go, install.go, addresses.go, namespace.go,
//     caller.go, bells.go, pods.go
//   - the base: predecessor.go, fdholder.go, shared.go, inside.go, proc.go, checks.go,
//     counters.go, alarm.go, reactor.go, state.go, wire.go, config.go
//
// The runtime calls confine.go (with metadata.go), package launch check.go and host.go.
// Attack tests replace the rules in checks.go. Package sock has operations on single
// sockets, and package filter selects the calls that a Switch answers.
package fastpath
