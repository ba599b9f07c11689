package berthd

import (
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// Changes of all jobs in a network share a pause, which ends with the last of them.
func TestJobsOfNetworkSharePause(t *testing.T) {
	n := &jobNames{jobs: map[string]*namedJob{}, changed: map[string]time.Time{}}
	mine := []siteconf.Allocation{{Job: 1, UID: 1000}, {Job: 2, UID: 1000}}
	wait := func(a siteconf.Allocation) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.beforeChange(n.jobs[a.ID()]) > 0
	}
	for _, a := range append(mine, siteconf.Allocation{Job: 3, UID: 1001}) {
		n.add(a)
		for range freeNames {
			if wait(a) {
				t.Fatalf("job %d: its first changes have to wait", a.Job)
			}
		}
	}
	if wait(mine[0]) {
		t.Error("a network without a change has to wait")
	}
	if !wait(mine[0]) || !wait(mine[1]) {
		t.Error("there is no pause after a change")
	}
	if wait(siteconf.Allocation{Job: 3}) {
		t.Error("another network has to wait")
	}
	n.remove("1")
	if !wait(mine[1]) {
		t.Error("the pause ends with the first job")
	}
	n.remove("2")
	n.remove("2")
	if len(n.changed) != 1 {
		t.Errorf("times of networks without a job are kept: %v", n.changed)
	}
}
