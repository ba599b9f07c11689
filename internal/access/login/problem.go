package login

import (
	"errors"
	"fmt"
)

// Exit codes of a Problem, from sysexits.h like a run's.
const (
	codeUsage       = 64 // it is not clear which cluster is meant
	codeNoJob       = 66 // there is no such job, or it is another user's
	codeUnavailable = 69 // the job has no cluster that can be reached now
)

// Problem is an error with the exit code that it becomes. It travels from the
// process that keeps a tunnel to the commands that use it.
type Problem struct {
	Code int
	Text string
	// Elsewhere lists other nodes that may still reach the cluster after its
	// tunnel was lost.
	Elsewhere []string `json:",omitempty"`
}

func (p *Problem) Error() string { return p.Text }

func problem(code int, format string, values ...any) *Problem {
	return &Problem{Code: code, Text: fmt.Sprintf(format, values...)}
}

// asProblem gives any error a code.
func asProblem(err error) *Problem {
	var known *Problem
	if errors.As(err, &known) {
		return known
	}
	return &Problem{Code: codeUnavailable, Text: err.Error()}
}
