package launch

import (
	"errors"
	"fmt"
)

// Exit codes of berth's own failures, from sysexits.h where it has a word for
// them. They leave 0 to 63 to the workload, whose code is passed through;
// docs/errors.md explains each.
const (
	ExitUsage       = 64  // the command line is wrong
	ExitManifest    = 65  // a manifest is invalid, or the API server refuses it
	ExitNoInput     = 66  // a file that was named cannot be read
	ExitUnavailable = 69  // this host lacks what a cluster needs
	ExitInternal    = 70  // a part of the cluster failed
	ExitNoSpace     = 73  // no room for the run's files
	ExitOutput      = 74  // the workload's output could not be passed on
	ExitNeverStarts = 75  // the workload waits for what will not come
	ExitConfig      = 78  // the request does not fit the allocation
	ExitTimeLimit   = 124 // the time was over before the workload ended
	exitSignalBase  = 128 // plus the signal that ended the run
)

// Failure is an error with the exit code that it becomes.
type Failure struct {
	Code int
	Err  error
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// fail gives err an exit code, unless one of its causes has one already.
func fail(code int, err error) error {
	var known *Failure
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &Failure{Code: code, Err: err}
}

// ExitCode returns the exit code for an error of this package.
func ExitCode(err error) int {
	var failure *Failure
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failure):
		return failure.Code
	default:
		return ExitInternal
	}
}

// roleError says that a part of the cluster failed for good.
type roleError struct {
	name, what, log string
	lines           []string
	// kept: the log outlives the run.
	kept bool
}

func (e *roleError) Error() string {
	where := "its log is " + e.log
	if !e.kept {
		where = "--debug-dir DIR keeps its log, which ends so"
	}
	text := fmt.Sprintf("%s %s; %s:", e.name, e.what, where)
	for _, line := range e.lines {
		text += "\n    " + line
	}
	return text
}
