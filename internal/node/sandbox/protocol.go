package sandbox

import (
	"fmt"
	"syscall"
)

// request is a request of the supervisor to init.
type request struct {
	Start  *Command    `json:",omitempty"`
	Signal *signalling `json:",omitempty"`
}

// signalling is a request to send a signal to the command with a name.
type signalling struct {
	Name   string
	Signal syscall.Signal
}

// Event is a report of init.
type Event struct {
	Kind EventKind
	// Name is the command's; empty for Ready and Failed.
	Name string
	// PID is the command's process id inside for Started, and init's process id
	// outside for Ready.
	PID int
	// Queues is the number of overlay queues among the files sent with Ready. Socket
	// is true if the file after them is the listener at Config.Socket, and Outside if the
	// next one is the listener at Network.ListenOutside.
	Queues          int
	Socket, Outside bool
	// Status is set with Exited.
	Status Status
	// Error is set with Failed.
	Error string
}

// files returns the least number of files that come with Ready.
func (e Event) files() int {
	n := 1 + e.Queues
	for _, more := range []bool{e.Socket, e.Outside} {
		if more {
			n++
		}
	}
	return n
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	// Ready means that the namespaces are set up. The event carries these files: the API
	// listener, the queues of the overlay, the listener at Config.Socket if one is
	// configured, and the egress device if it could be opened.
	Ready EventKind = "ready"
	// Failed means that the setup, or the start of the named command, failed.
	Failed EventKind = "failed"
	// Started means that the named command runs.
	Started EventKind = "started"
	// Exited means that the named command ended.
	Exited EventKind = "exited"
	// Stopped means that a signal (SIGSTOP) had stopped the named command, and init has
	// continued it.
	Stopped EventKind = "stopped"
)

// Status is the exit status of a process.
type Status struct {
	Code   int
	Signal syscall.Signal
	// MaxRSS is the peak resident memory in bytes, children included.
	MaxRSS int64
}

func (s Status) String() string {
	if s.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%s)", int(s.Signal), s.Signal)
	}
	return fmt.Sprintf("exit code %d", s.Code)
}
