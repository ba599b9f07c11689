package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// testCrashes kills a controller at each of its calls, before and after the call has taken
// effect. The next controller continues, and there is one job, which ran once.
func testCrashes(p *fixture) {
	p.slurm.quick = true // a job that is released too early ends at once
	for _, after := range []bool{false, true} {
		for at := 1; ; at++ {
			name := fmt.Sprintf("job-%d-%t", at, after)
			object := p.createJob(name)
			uid := string(object.GetUID())
			killed := p.runKilled(at, after, func() bool {
				now, err := p.objects(kinds.SlurmJob).Get(p.Context(), name, metav1.GetOptions{})
				if err != nil {
					return false
				}
				status, err := kinds.StatusOf(now)
				return err == nil && status.State == "COMPLETED"
			})
			if !killed {
				break // it took fewer calls
			}
			stop := p.serve()
			status := p.awaitStatus(object, state("COMPLETED"))
			jobs := p.slurm.of(uid)
			ran := 0
			for _, job := range jobs {
				ran += job.ran
			}
			if len(jobs) != 1 || ran != 1 || status.JobID != jobs[0].ID {
				p.Errorf("killed at call %d (after its effect: %t): %d jobs, which ran %d times; status %+v", at, after, len(jobs), ran, status)
			}
			stop()
			if at > 50 {
				p.Fatal("a job takes more than 50 calls")
			}
		}
	}
}

// runKilled runs a controller that is killed at the given call, and returns when it was killed or
// done returns true. It reports whether the controller was killed.
func (p *fixture) runKilled(at int, after bool, done func() bool) bool {
	p.Helper()
	ctx, cancel := context.WithCancel(p.Context())
	defer cancel()
	point := &crash{at: at, after: after, kill: cancel}
	config := p.server.Config(p, "admin", "system:masters")
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return crashingTransport{rt, point} })
	options := p.options(config)
	options.Slurm = crashingSlurm{p.slurm, point}
	c, err := New(options)
	if err != nil {
		p.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	await(p, "the controller", func() error {
		if ctx.Err() == nil && !done() {
			return fmt.Errorf("it was not killed at call %d", at)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		p.Errorf("run: %v", err)
	}
	point.mu.Lock()
	defer point.mu.Unlock()
	return point.dead
}

// testLeaders checks that one of two controllers leads, and that the other takes over.
func testLeaders(p *fixture) {
	p.createJob("first")
	config := p.server.Config(p, "admin", "system:masters")
	first, second := p.options(config), p.options(config)
	first.Identity, second.Identity = "first", "second"
	firstSlurm, secondSlurm := &countingSlurm{fakeSlurm: p.slurm}, &countingSlurm{fakeSlurm: p.slurm}
	first.Slurm, second.Slurm = firstSlurm, secondSlurm
	stopFirst := p.run(first)
	await(p, "a leader", func() error { return firstSlurm.used() })
	p.run(second)
	if err := secondSlurm.used(); err == nil {
		p.Error("the second controller serves, too")
	}
	stopFirst()
	await(p, "a successor", func() error { return secondSlurm.used() })
	object := p.createJob("second")
	p.awaitStatus(object, state("RUNNING"))
}

// countingSlurm counts the calls of States of one controller.
type countingSlurm struct {
	*fakeSlurm
	count atomic.Int64
}

func (c *countingSlurm) States(ctx context.Context, jobs map[string]string) (map[string]queue.State, error) {
	c.count.Add(1)
	return c.fakeSlurm.States(ctx, jobs)
}

func (c *countingSlurm) used() error {
	if c.count.Load() == 0 {
		return errors.New("it has not called States")
	}
	return nil
}

// TestDifferenceOmitsEqualFields also checks that removed fields are null.
func TestDifferenceOmitsEqualFields(t *testing.T) {
	changes, err := difference(kinds.Status{State: "RUNNING", Started: "a"}, kinds.Status{State: "RUNNING", Reason: "b"})
	if gone, has := changes["started"]; err != nil || len(changes) != 2 || changes["reason"] != "b" || !has || gone != nil {
		t.Errorf("got %v, %v", changes, err)
	}
}
