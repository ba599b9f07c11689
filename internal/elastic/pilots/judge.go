package pilots

import (
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/elastic/plan"
)

// judge decides whether a pilot stays.
func (l *Loop) judge(p *pilot, needed bool, in input, now time.Time) {
	nodes := in.nodesOf[p.UID]
	ready := 0
	for _, node := range nodes {
		if plan.IsReady(node.Node) {
			ready++
			if p.seen == 0 && ready == 1 {
				l.measure(p, node)
			}
		}
	}
	p.seen = max(p.seen, ready)
	p.Joined = p.Joined || ready > 0
	if p.Leaving || p.final != nil {
		return
	}
	if needed {
		p.unneeded = time.Time{}
	} else if p.unneeded.IsZero() {
		p.unneeded = now
	}
	busy := needed || !p.Joined
	for _, node := range nodes {
		busy = busy || slices.ContainsFunc(node.Pods, keepsNode)
	}
	switch {
	case busy:
		p.idle, p.idling = time.Time{}, false
	case p.idle.IsZero():
		p.idle = now
	case now.Sub(p.idle) >= l.Idle:
		p.idling = true
	}
	if !p.started() && !p.unneeded.IsZero() && now.Sub(p.unneeded) >= unneededFor {
		p.Leaving = true
	}
}

// measure compares a ready node with the request for it. If its pods do not fit, each plan would
// bring another node like it, so the next pilot waits. The caller holds mu.
func (l *Loop) measure(p *pilot, node plan.Node) {
	want := p.Size
	want.Pods = 0
	if want.Within(plan.Room(node.Node)) {
		delete(l.failures, failureKey(p.Request))
		return
	}
	l.FilesInMemory = true // the most likely cause
	l.fail(p, fmt.Sprintf("node %s of job %s has less room for pods than was requested", node.Name, p.Job))
}
