// Package fastpath switches TCP sockets of pods to the host's network. The kernel
// asks it (seccomp user notification) about each connect and accept of a pod's
// processes. It answers with a socket that is connected directly to the other
// node's host, or to the outside. A connection that it is not certain about stays
// on the overlay. docs/design/0010-fast-path.md has the reasons.
//
// A Switch runs in the host's network namespace, as the user, without any
// capability there. It knows addresses and nodes. What a Service is and what a
// policy permits it asks through the interfaces ServiceMap and Policy. The runtime
// installs the filter in a container (Confine).
//
// # Outgoing connections
//
// A connecting (conn.go) has one of these states. Its record holds a stage, at
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
//	state      event                        action                         next
//	pending    valid preamble, permitted    ring a bell at the listener    ringing
//	pending    invalid, full or too late    close                          done
//	pending    no such pod, not permitted   verdictOverlay                 done
//	ringing    listener reached             verdictConnected               parked
//	ringing    no listener                  verdictRefused                 done
//	ringing    listener's queue is full     verdictOverlay                 done
//	parked     the pod accepts the bell     takeRung                       delivering
//	parked     the listener has closed      ringAgain                      parked
//	parked     policy forbids it            reset                          done
//	delivering the caller has it            answer                         switched
//	delivering the caller was interrupted   keepUndelivered                parked
//
// # Reading order
//
// config.go, switch.go (a Switch and its parts), pods.go (containers and their
// calls), caller.go (the calling thread), connect.go, conn.go, outside.go, steer.go,
// install.go; wire.go, peers.go, pending.go, bells.go, parked.go, accept.go, wait.go;
// names.go, cut.go, sweep.go; state.go, takeover.go, resume.go. Attack tests replace
// the rules in checks.go. Package sock has operations on single sockets. Package filter
// selects the calls that a Switch answers.
package fastpath
