package batch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
)

// State is Slurm's record of one job: an array element, a component of a
// heterogeneous job, or a plain job.
type State struct {
	ID string
	// Name is a Slurm job state, such as RUNNING; Reason is Slurm's reason
	// for it.
	Name, Reason string
	Nodes        string
	// Code and Signal are the script's exit status.
	Code, Signal int
	// Stdout and Stderr are the script's files, as far as Slurm knows them.
	Stdout, Stderr string
}

// final holds the names of the states of ended jobs.
var final = []string{"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}

// Ended reports whether a job in a state will not run any more, unless it is requeued.
func Ended(state string) bool { return slices.Contains(final, state) }

// ended reports whether the job will not run any more.
func (s State) ended() bool { return Ended(s.Name) }

// signalNotBegun stands for the signal in the exit status (0:53) of a script that slurmd
// could not start.
const signalNotBegun = 53

// ExitCode returns the script's exit code if the script ended by itself, and otherwise the
// exit code of berth for the reason why it ended, as in package exitcode.
func (s State) ExitCode() int {
	switch {
	case s.Name == "TIMEOUT" || s.Name == "DEADLINE":
		return exitcode.TimeLimit
	case s.Code != 0:
		return s.Code
	case s.Signal != 0:
		return exitcode.Signal + s.Signal
	}
	switch s.Name {
	case "COMPLETED":
		return 0
	case "CANCELLED", "PREEMPTED":
		return exitcode.Signal + 15
	case "NODE_FAIL", "BOOT_FAIL", "REVOKED":
		return exitcode.Unavailable
	case "OUT_OF_MEMORY":
		return exitcode.Signal + 9
	}
	return 1
}

// text describes the state in a few words.
func (s State) text() string {
	name := strings.ToLower(s.Name)
	switch {
	case s.Name == "PENDING" && s.Reason != "" && s.Reason != "None":
		return name + " (" + s.Reason + ")"
	case s.Name == "RUNNING":
		return name + " on " + s.Nodes
	case s.Name == "TIMEOUT":
		return "its time limit was over; ask for more with --time"
	case s.ended() && s.Signal == signalNotBegun:
		return fmt.Sprintf("%s before the script began: can %s be written, and is the working directory there, on %s? slurmd's log says more", name, s.Stdout, s.Nodes)
	case s.ended() && s.ExitCode() != 0:
		return fmt.Sprintf("%s, exit code %d", name, s.ExitCode())
	}
	return name
}

// readStates asks Slurm for the states of all parts of a job.
func readStates(ctx context.Context, job Job, ask slurm.Ask) ([]State, error) {
	command := []string{"scontrol"}
	if job.Cluster != "" {
		command = append(command, "--clusters="+job.Cluster)
	}
	output, err := ask(ctx, append(command, "show", "job", job.ID)...)
	if err != nil {
		return nil, err
	}
	states := parseStates(string(output))
	if len(states) == 0 {
		return nil, fmt.Errorf("read the state of job %s: scontrol says nothing of it", job.ID)
	}
	return states, nil
}

// parseStates parses scontrol's output, which lists the parts of a job one after
// the other. Each part starts with a word JobId=.
func parseStates(output string) []State {
	var states []State
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		// A path may contain spaces and has its own line.
		name, value, _ := strings.Cut(line, "=")
		if s := len(states) - 1; s >= 0 && (name == "StdOut" || name == "StdErr") {
			if name == "StdOut" {
				states[s].Stdout = value
			} else {
				states[s].Stderr = value
			}
			continue
		}
		for word := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(word, "=")
			if name == "JobId" {
				states = append(states, State{ID: value})
			}
			if len(states) == 0 {
				continue
			}
			state := &states[len(states)-1]
			switch name {
			case "JobState":
				state.Name = slurm.StateOf(value)
			case "Reason":
				state.Reason = value
			case "NodeList":
				state.Nodes = value
			case "ExitCode":
				code, signal, _ := strings.Cut(value, ":")
				state.Code, _ = strconv.Atoi(code)
				state.Signal, _ = strconv.Atoi(signal)
			}
		}
	}
	return states
}
