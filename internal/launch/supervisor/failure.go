package supervisor

import (
	"fmt"
	"strings"

	"berth.dev/berth/internal/base/exitcode"
)

// noWatchers is part of the error of a role that gets no inotify instance.
const noWatchers = "too many open files"

// lastLines is the number of lines of a failed process's log that its error shows.
const lastLines = 8

// failedError reports a role that failed for good, with the end of its log.
type failedError struct {
	name, what, log string
	lines           []string
	// kept reports whether the log outlives the run.
	kept bool
}

// FailedError returns the error of a process that failed for good. It has no exit
// code.
func (s *Supervisor) FailedError(name, what, log string) error {
	return &failedError{name: name, what: what, log: log, lines: tail(log, lastLines), kept: s.KeepLogs}
}

// failedCode adds the exit code to the error of a failed role: Unavailable if inotify
// instances ran out, and Internal otherwise. That shortage is not a fault of the role: the
// check at the start passed, but other runs started at the same time.
func failedCode(err error) error {
	if strings.Contains(err.Error(), noWatchers) {
		return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w\n%s", err, MoreWatchers()))
	}
	return exitcode.Wrap(exitcode.Internal, err)
}

func (e *failedError) Error() string {
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
