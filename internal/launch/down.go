package launch

import (
	"fmt"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/command"
	"berth.dev/berth/internal/launch/members"
)

// The functions in this file undo the steps of the start, the last one first. Each
// has to work after a step that failed.

// takeDown ends the command and undoes all steps that have begun. An error has the exit
// code Internal.
func (r *run) takeDown() error {
	began := time.Now()
	if parent := r.work.getCommand(); parent != nil {
		// The command's descendants may need a moment. Take the cluster down
		// meanwhile.
		parent.End(command.OrphanGrace)
	}
	err := r.start.unwind()
	r.Log.Debug("taken down", "took", time.Since(began))
	if err != nil {
		return exitcode.Wrap(exitcode.Internal, fmt.Errorf("take the cluster down: %w", err))
	}
	return nil
}

// closeSandbox ends all processes in the sandbox, and then the command and the processes
// that it left behind.
func (r *run) closeSandbox() error {
	if r.box == nil {
		return nil
	}
	err := r.node.closeSandbox()
	r.work.getCommand().Wait()
	command.EndOrphans(r.Crash.PID())
	return err
}

// leaveMembers ends the connections to the other nodes, and refuses clients of the
// API server. If the others still wait for this node, Decline reports the reason
// later.
func (r *run) leaveMembers() {
	switch {
	case r.lostLease.Load():
		r.members.Drop()
	case r.moves.Load():
		r.members.Move()
	case !r.members.Awaited():
		r.members.Leave(members.RunEnded)
	}
	if r.apiListener != nil {
		r.apiListener.Close()
	}
}
