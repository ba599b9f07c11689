package workload

import (
	"context"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// resume restores the result and the ended targets that another process has recorded.
func (f *follower) resume() {
	followed := f.streams.Progress.Followed()
	f.result = Result{Code: followed.Result.Code, Reason: followed.Result.Reason}
	var open []*target
	for _, t := range f.targets {
		if t.done = followed.hasEnded(t.object.GetUID()); !t.done {
			open = append(open, t)
		}
	}
	f.stuck.expect(open)
}

// end records that a target has ended. The caller calls fail before, if it failed.
func (f *follower) end(t *target) {
	t.done = true
	result := f.result
	f.streams.Progress.Apply(Step{Key: string(t.object.GetUID()), Ended: &result})
}

// handleList handles the end of a watch's first list, after its objects.
func (f *follower) handleList(ctx context.Context) {
	if f.lists--; f.lists > 0 {
		return
	}
	f.logs.followDeleted(ctx)
	f.logs.turns.sort()
	if f.streams.Listed != nil {
		f.streams.Listed()
	}
	f.askForAbsent(ctx)
}

// followDeleted follows the rest of the logs that another process has begun to follow
// and whose pods were deleted before this process could see them.
func (l *logs) followDeleted(ctx context.Context) {
	for key, mark := range l.streams.Progress.Followed().Marks {
		uid, container, _ := strings.Cut(key, "/")
		if mark.Node == "" || l.nodes[key] != nil {
			continue
		}
		l.followDeletedPod(ctx, mark.logPlace, types.UID(uid), container, time.Time{})
	}
}

// followDeletedPod follows the log of a container whose pod is deleted. started is when
// the container started, or zero.
func (l *logs) followDeletedPod(ctx context.Context, place logPlace, uid types.UID, container string, started time.Time) {
	s := newNodeStream(l, place, uid, container)
	s.podGone, s.created = true, started
	l.startNodeStream(ctx, s)
	s.end(true)
}
