package batch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// Slurm is queried for a state after a tenth of the time that the state has
// lasted. So the end of a job is known after another tenth of its run time, and
// a long wait costs the controller two queries a minute.
const (
	firstAsk = 500 * time.Millisecond
	lastAsk  = 30 * time.Second
	askShare = 10
)

// Watcher waits for a job.
type Watcher struct {
	Ask slurm.Ask
	Log *slog.Logger
	// Started is called once, when the files of the job's output are known.
	Started func(State)

	states  []State
	started bool
	// failing is set while the controller does not answer.
	failing bool
	// reported is the text that report printed last.
	reported string
}

// Watch waits until all parts of a job have ended, and returns their states.
func (w *Watcher) Watch(ctx context.Context, job Job) ([]State, error) {
	for since := time.Now(); ; {
		changed, err := w.look(ctx, job)
		if err != nil {
			return nil, err
		}
		if len(w.states) > 0 && !slices.ContainsFunc(w.states, func(s State) bool { return !s.ended() }) {
			return w.states, nil
		}
		if changed {
			since = time.Now()
		}
		select {
		case <-time.After(min(lastAsk, max(firstAsk, time.Since(since)/askShare))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// look queries the state once and reports whether it changed. If the controller does not
// answer, look only logs that, because the controller may answer later. It returns an error
// if Slurm does not know the job any more or ctx has ended.
func (w *Watcher) look(ctx context.Context, job Job) (changed bool, err error) {
	now, err := readStates(ctx, job, w.Ask)
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case slurm.IsUnknownJob(err):
		return false, fmt.Errorf("wait for job %s: Slurm does not know it any more, so its result is lost; try: sacct -j %s", job.ID, job.ID)
	case err != nil:
		if !w.failing {
			w.Log.Warn(fmt.Sprintf("the state of job %s is not known now; asking again: %v", job.ID, err))
		}
		w.failing = true
		return false, nil
	}
	w.failing = false
	changed = w.merge(now)
	w.report(job)
	if !w.started && w.Started != nil {
		w.started = true
		w.Started(w.states[0])
	}
	return changed, nil
}

// merge adds the new states. It keeps states that are missing in them, because Slurm
// forgets ended elements of an array while others still run.
func (w *Watcher) merge(now []State) (changed bool) {
	for _, old := range w.states {
		same := func(s State) bool { return s.ID == old.ID }
		if i := slices.IndexFunc(now, same); i < 0 && old.ended() {
			now = append(now, old)
		} else if i < 0 || now[i].Name != old.Name || now[i].Reason != old.Reason {
			changed = true
		}
	}
	changed = changed || len(now) != len(w.states)
	w.states = now
	return changed
}

// report prints the job's state, and counts the parts of a job that has several.
func (w *Watcher) report(job Job) {
	text := w.states[0].text()
	if len(w.states) > 1 {
		counts := map[string]int{}
		for _, state := range w.states {
			counts[strings.ToLower(state.Name)]++
		}
		var parts []string
		for name, count := range counts {
			parts = append(parts, fmt.Sprintf("%d %s", count, name))
		}
		slices.Sort(parts)
		text = strings.Join(parts, ", ")
	}
	if text != w.reported {
		w.Log.Info(fmt.Sprintf("job %s: %s", job.ID, text))
	}
	w.reported = text
}
