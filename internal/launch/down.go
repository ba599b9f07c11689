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

// takeDown undoes all steps that were done. Further calls have no effect.
func (r *run) takeDown() error {
	if r.down {
		return nil
	}
	r.down = true
	start := time.Now()
	if r.control != nil {
		r.control.Close()
	}
	r.supervisor.IgnoreExits()
	switch {
	case r.lostLease.Load():
		r.members.Drop()
	case !r.members.Awaited():
		r.members.Leave("the run has ended")
	}
	r.localMembers.End()
	if kept := r.getCommand(); kept != nil {
		// The command's descendants may need a moment. Take the cluster down
		// meanwhile.
		kept.End(command.OrphanGrace)
	}
	if r.metrics != nil {
		r.metrics.Close()
	}
	if r.apiListener != nil {
		r.apiListener.Close()
	}
	for _, d := range r.published {
		d.Listener.Close()
	}
	if r.named != nil {
		r.named.Close()
	}
	if r.identities.Key != nil {
		r.identities.Key.Close()
	}
	var err error
	if r.box != nil {
		err = errors.Join(r.debug().keepPodLogs(r.plan.Paths.PodLogs()), r.box.Close())
		r.noteCrash(lostCode)
		<-r.watching
		r.supervisor.EndOutside()
		r.switching.Close()
		if kept := r.getCommand(); kept != nil {
			kept.Wait()
		}
		command.EndOrphans(r.Crash.PID())
	} else {
		for _, dir := range []*rundir.Dir{r.scratch, r.private} {
			if dir != nil {
				err = errors.Join(err, os.RemoveAll(dir.Path))
			}
		}
	}
	err = errors.Join(err, r.removeCgroup(), r.saver.close())
	for _, dir := range []*rundir.Dir{r.scratch, r.private} {
		if dir != nil {
			dir.Lock.Close()
			// If another run's directory is there, it stays.
			_ = os.Remove(filepath.Dir(dir.Path))
		}
	}
	r.Log.Debug("taken down", "took", time.Since(start))
	if err != nil {
		return exitcode.Wrap(exitcode.Internal, fmt.Errorf("take the cluster down: %w", err))
	}
	return nil
}
