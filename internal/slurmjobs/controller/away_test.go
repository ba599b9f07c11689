package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// outage is a transport without a connection to the API server, as long as it is down.
type outage struct {
	http.RoundTripper
	mu sync.Mutex
	// up ends when the outage begins, and cuts the watches.
	up  context.Context
	cut context.CancelFunc
}

// set begins or ends an outage.
func (o *outage) set(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cut != nil {
		o.cut()
	}
	if !down {
		o.up, o.cut = context.WithCancel(context.Background())
	}
}

func (o *outage) RoundTrip(request *http.Request) (*http.Response, error) {
	o.mu.Lock()
	up := o.up
	o.mu.Unlock()
	if up.Err() != nil {
		return nil, errors.New("connection refused")
	}
	ctx, cancel := context.WithCancel(request.Context())
	context.AfterFunc(up, cancel)
	return o.RoundTripper.RoundTrip(request.WithContext(ctx))
}

// testServerAway: the API server is away while one job ends and an object is created, until the
// controller has lost its lease. The controller continues later.
func testServerAway(p *fixture) {
	config := p.server.Config(p, "admin", "system:masters")
	away := &outage{}
	away.set(false)
	config.Wrap(func(transport http.RoundTripper) http.RoundTripper {
		away.mu.Lock()
		defer away.mu.Unlock()
		if away.RoundTripper == nil {
			away.RoundTripper = transport
		}
		return away
	})
	p.run(p.options(config))
	first := p.createJob("first")
	p.awaitStatus(first, state("RUNNING"))
	away.set(true)
	p.slurm.set(string(first.GetUID()), func(job *fakeJob) { job.State.State, job.End = "COMPLETED", time.Unix(1e9+20, 0) })
	second := p.createJob("second")
	await(p, "the controller's lease expires", func() error {
		leader, err := Leader(p.Context(), p.client, p.namespace)
		if err == nil && leader != "" {
			err = fmt.Errorf("it is held by %s", leader)
		}
		return err
	})
	away.set(false)
	p.awaitStatus(first, state("COMPLETED"))
	p.awaitStatus(second, state("RUNNING"))
	for _, object := range []string{string(first.GetUID()), string(second.GetUID())} {
		if jobs := p.slurm.of(object); len(jobs) != 1 || jobs[0].ran != 1 {
			p.Errorf("got %+v", jobs)
		}
	}
}
