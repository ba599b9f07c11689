// Package exitcode holds the exit codes of berth and its programs, and the error
// type that carries one. The texts of the errors do not belong here.
package exitcode

import (
	"errors"
	"syscall"
)

// Exit codes for failures of berth itself, from sysexits.h where it has one that
// fits. Codes 0 to 63 belong to the workload, whose code is passed on.
// docs/errors.md explains each code.
const (
	Usage       = 64  // the command line is wrong
	Manifest    = 65  // a manifest is invalid, or the API server rejects it
	NoInput     = 66  // an input file cannot be read
	Unavailable = 69  // the host lacks what a cluster needs
	Internal    = 70  // a part of the cluster failed
	NoSpace     = 73  // no room for the run's files
	Output      = 74  // the workload's output could not be written
	NeverStarts = 75  // the workload can never start
	Config      = 78  // the request does not fit the allocation, or a configuration is wrong
	TimeLimit   = 124 // the time limit was reached before the workload ended
	Signal      = 128 // plus the number of the signal that ended the run
)

// Error is an error with its exit code.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Wrap gives err an exit code. It returns err unchanged if err is nil or wraps
// an Error already.
func Wrap(code int, err error) error {
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	return &Error{Code: code, Err: err}
}

// Of returns the exit code of err: 0 for nil, and Internal for an error without
// a code.
func Of(err error) int {
	var coded *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.Code
	default:
		return Internal
	}
}

// OfStatus returns the exit code of a process as a shell does: Signal plus the
// number of the signal for a killed process.
func OfStatus(status syscall.WaitStatus) int {
	if status.Signaled() {
		return Signal + int(status.Signal())
	}
	return status.ExitStatus()
}
