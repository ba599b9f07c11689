package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// jobWithInputs is a SlurmJob without its name and the folder for its inputs.
const jobWithInputs = `{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: %s}, spec: {batch: "#!/bin/sh\n", prepare: {to: %s, mount: {name: data, emptyDir: {}}}}}`

// fetches answers calls of Fetch with errors, in order, and then with success.
type fetches struct {
	mu   sync.Mutex
	errs []error
	to   []string // of each call
}

func (f *fetches) fetch(_ context.Context, _ *unstructured.Unstructured, request kinds.Request, _ queue.Job) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = append(f.to, request.Inputs.To)
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return "", err
	}
	return "volume data is in a", nil
}

// calls returns the folders of all calls.
func (f *fetches) calls() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.to, " ")
}

// testInputs copies inputs before the job is submitted. An attempt that fails is repeated. Inputs
// of an object that was edited before it got a job are copied again, and once it has a job, also
// after a restart of the controller, they are not.
func testInputs(p *fixture) {
	f := &fetches{errs: []error{errors.New("volume data is away")}}
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	options.Fetch = f.fetch
	p.setUnavailable(errors.New("Slurm is unavailable"))
	stop := p.run(options)
	object := p.create(fmt.Sprintf(jobWithInputs, "prepared", "a"))
	p.awaitStatus(object, func(s kinds.Status) bool {
		return s.State == kinds.Waiting && s.Prepared == 1 && s.Message == "Slurm is unavailable"
	})
	if got := f.calls(); got != "a a" {
		p.Errorf("got %q", got)
	}
	p.patch(object, `{"spec": {"prepare": {"to": "b"}}}`)
	p.awaitStatus(object, func(s kinds.Status) bool { return s.Prepared == 2 })
	p.setUnavailable(nil)
	p.awaitStatus(object, state("RUNNING"))
	stop()
	p.run(options)
	p.complete(object)
	p.awaitStatus(object, state("COMPLETED"))
	if got := f.calls(); got != "a a b" {
		p.Errorf("got %q", got)
	}
}

// testNoInputs: inputs that cannot be copied reject the object, until its spec is corrected.
func testNoInputs(p *fixture) {
	f := &fetches{errs: []error{fmt.Errorf("copy: %w", finalError())}}
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	options.Fetch = f.fetch
	p.run(options)
	object := p.create(fmt.Sprintf(jobWithInputs, "large", "a"))
	status := p.awaitStatus(object, state(kinds.Rejected))
	if jobs := p.slurm.of(string(object.GetUID())); !strings.HasPrefix(status.Message, "copy: ") || len(jobs) > 0 {
		p.Errorf("got %+v, %+v", status, jobs)
	}
	p.patch(object, `{"spec": {"prepare": {"to": "b"}}}`)
	p.awaitStatus(object, state("RUNNING"))
	if got := f.calls(); got != "a b" {
		p.Errorf("got %q", got)
	}
}

// testInputsEnd: an attempt to copy inputs ends when its object is deleted.
func testInputsEnd(p *fixture) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	options.Fetch = func(ctx context.Context, _ *unstructured.Unstructured, _ kinds.Request, _ queue.Job) (string, error) {
		close(begun)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return "", ctx.Err()
	}
	p.run(options)
	object := p.create(fmt.Sprintf(jobWithInputs, "lasting", "a"))
	limit := time.After(timeout)
	select {
	case <-begun:
	case <-limit:
		p.Fatal("the inputs are not copied")
	}
	p.delete(object)
	p.awaitGone(object)
	select {
	case err := <-ended:
		if !errors.Is(err, errChanged) {
			p.Error(err)
		}
	case <-limit:
		p.Error("the attempt lasts")
	}
}
