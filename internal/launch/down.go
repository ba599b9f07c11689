package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/launch/command"
)

// The functions in this file undo the steps of the start, the last one first. Each
// has to work after a step that failed.

// takeDown ends the command and undoes all steps that have begun.
func (r *run) takeDown() error {
	began := time.Now()
	if parent := r.getCommand(); parent != nil {
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

// stopRoles ignores the ends of roles, and closes the socket with the node's page.
func (r *run) stopRoles() {
	r.supervisor.IgnoreExits()
	if r.metrics != nil {
		r.metrics.Close()
	}
}

// closeSandbox ends all that runs in the sandbox, and then the processes outside
// that serve it.
func (r *run) closeSandbox() error {
	var err error
	if r.box != nil {
		err = errors.Join(r.debug().keepPodLogs(r.plan.Paths.PodLogs()), r.box.Close())
		r.noteCrash(lostCode)
		<-r.watching
		r.supervisor.EndOutside()
		r.switching.Close()
		if parent := r.getCommand(); parent != nil {
			parent.Wait()
		}
		command.EndOrphans(r.Crash.PID())
	}
	return err
}

// leaveMembers ends the connections to the other nodes, and refuses clients of the
// API server. If the others still wait for this node, Decline reports the reason
// later.
func (r *run) leaveMembers() {
	switch {
	case r.lostLease.Load():
		r.members.Drop()
	case !r.members.Awaited():
		r.members.Leave("the run has ended")
	}
	if r.apiListener != nil {
		r.apiListener.Close()
	}
}

// dropPlan removes the user's key, and the run's cgroup.
func (r *run) dropPlan() error {
	if r.identities.Key != nil {
		r.identities.Key.Close()
	}
	return r.removeCgroup()
}

func (r *run) closeControl() {
	if r.control != nil {
		r.control.Close()
	}
}

func (r *run) closeState() error { return r.saver.close() }

// leaveDirectories removes the run's directories if no janitor does, and lets go of
// their locks.
func (r *run) leaveDirectories() error {
	var err error
	for _, dir := range []*rundir.Dir{r.scratch, r.private} {
		if dir == nil {
			continue
		}
		if r.box == nil {
			err = errors.Join(err, os.RemoveAll(dir.Path))
		}
		dir.Lock.Close()
		// If another run's directory is there, it stays.
		_ = os.Remove(filepath.Dir(dir.Path))
	}
	return err
}

// closePorts closes the published ports, and gives up their names.
func (r *run) closePorts() {
	for _, port := range r.published {
		port.Listener.Close()
	}
	if r.named != nil {
		r.named.Close()
	}
}

func (r *run) endLocalMembers() { r.localMembers.End() }
