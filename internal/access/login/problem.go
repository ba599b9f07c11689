package login

import (
	"errors"
	"fmt"
)

// The exit codes of a Problem, from sysexits.h like the exit codes of a run.
const (
	codeUsage       = 64 // ambiguous: several clusters could be meant
	codeNoJob       = 66 // no such job, or the job of another user
	codeUnavailable = 69 // the job's cluster cannot be reached now
)

// Problem is an error with its exit code. The process that keeps a tunnel sends it
// to the commands.
type Problem struct {
	Code int
	Text string
	// Elsewhere lists other nodes that may reach the cluster after the tunnel was
	// lost.
	Elsewhere []string `json:",omitempty"`
}

func (p *Problem) Error() string { return p.Text }

func problem(code int, format string, values ...any) *Problem {
	return &Problem{Code: code, Text: fmt.Sprintf(format, values...)}
}

// asProblem adds an exit code to any error.
func asProblem(err error) *Problem {
	if known, ok := errors.AsType[*Problem](err); ok {
		return known
	}
	return &Problem{Code: codeUnavailable, Text: err.Error()}
}
