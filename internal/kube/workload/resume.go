package workload

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// resume takes over what another process has seen of the targets.
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

// end notes that a target has ended. A failure is in f.result before.
func (f *follower) end(t *target) {
	t.done = true
	result := f.result
	f.streams.Progress.Apply(Step{Key: string(t.object.GetUID()), Ended: &result})
}

// handleList comes after the objects of a first list.
func (f *follower) handleList(ctx context.Context) {
	if f.lists--; f.lists > 0 {
		return
	}
	f.logs.followDeleted(ctx)
	f.logs.turns.sort()
	f.askForAbsent(ctx)
}

// askForAbsent asks once for each target that no first list had: no watch reports the
// deletion of an object that was never seen. Without an answer it tries again later.
func (f *follower) askForAbsent(ctx context.Context) {
	if f.lists > 0 || f.asked {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stuckPeriod)
	defer cancel()
	for _, t := range f.targets {
		if !t.finite || t.done || t.seen {
			continue
		}
		resource := podResource
		if t.job {
			resource = jobResource
		}
		now, err := f.client.dynamic.Resource(resource).Namespace(t.object.GetNamespace()).Get(ctx, t.object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && now.GetUID() != t.object.GetUID():
			f.fail(1, fmt.Sprintf("%s %s was deleted before its result was seen, so it is not known whether it succeeded", strings.ToLower(t.object.GetKind()), t.object.GetName()))
			f.end(t)
		case err != nil:
			return
		}
	}
	f.asked = true
}

// followDeleted follows the rest of the logs that another process has begun to follow
// and whose pods were deleted before this process could see them.
func (l *logs) followDeleted(ctx context.Context) {
	for key, mark := range l.streams.Progress.Followed().Marks {
		uid, container, _ := strings.Cut(key, "/")
		if mark.Node == "" || l.nodes[key] != nil {
			continue
		}
		s := newNodeStream(l, mark.logPlace, types.UID(uid), container)
		s.podGone = true
		l.startNodeStream(ctx, s)
		s.end(true)
	}
}
