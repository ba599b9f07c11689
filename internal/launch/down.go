package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
)

// takeDown undoes everything, whatever was reached.
func (r *run) takeDown() error {
	if r.down {
		return nil
	}
	r.down = true
	start := time.Now()
	if r.standing != nil {
		r.standing.Close()
	}
	r.crew.dismiss()
	switch {
	case r.deposed.Load():
		r.team.drop()
	case !r.team.awaited():
		r.team.leave("the run has ended")
	}
	r.siblings.end()
	if kept := r.getKeeper(); kept != nil {
		// The command's leftovers may take a moment; the cluster goes meanwhile.
		kept.end(orphanGrace)
	}
	if r.metrics != nil {
		r.metrics.Close()
	}
	if r.apiDoor != nil {
		r.apiDoor.Close()
	}
	for _, d := range r.doors {
		d.listener.Close()
	}
	if r.named != nil {
		r.named.Close()
	}
	if r.identities.key != nil {
		r.identities.key.Close()
	}
	var err error
	if r.box != nil {
		err = errors.Join(r.debug().keepPodLogs(r.plan.Paths.PodLogs()), r.box.Close())
		<-r.watching
		r.crew.endOutside()
		r.switching.close()
		if kept := r.getKeeper(); kept != nil {
			kept.wait()
		}
		endOrphans()
	} else {
		for _, dir := range []*rundir.Dir{r.scratch, r.private} {
			if dir != nil {
				err = errors.Join(err, os.RemoveAll(dir.Path))
			}
		}
	}
	err = errors.Join(err, r.removeCgroup(), r.keeping.close())
	for _, dir := range []*rundir.Dir{r.scratch, r.private} {
		if dir != nil {
			dir.Lock.Close()
			// Another run's directory may be there; then it stays.
			_ = os.Remove(filepath.Dir(dir.Path))
		}
	}
	r.Log.Debug("taken down", "took", time.Since(start))
	if err != nil {
		return exitcode.Wrap(exitcode.Internal, fmt.Errorf("take the cluster down: %w", err))
	}
	return nil
}
