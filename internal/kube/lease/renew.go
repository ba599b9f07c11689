package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// maxAttempts bounds the attempts to renew that wait for an answer at the same time.
const maxAttempts = 3

// errNoAnswer is the reason of a lost lease while the first attempts still wait.
var errNoAnswer = errors.New("the API server has not answered")

// attempt is a finished attempt to renew the lease.
type attempt struct {
	// sent is the time just before the write.
	sent    time.Time
	written *unstructured.Unstructured
	err     error
}

// renewal is the state of Renew.
//
// On a busy machine an API server may take longer to answer than a lost answer is
// worth waiting for. So another attempt begins then, and the earlier one goes on:
// ending it would discard the work of the API server.
type renewal struct {
	*Lease
	// expiry fires when the holder gives the lease up.
	expiry   *time.Timer
	finished chan attempt
	// running counts the attempts that have not finished. begun is the start of the
	// last one.
	running int
	begun   time.Time
	// asking is set while a process that was stopped, or that waited long for its last
	// answer, checks whether it still holds the lease.
	asking bool
	// problem is the last error of an attempt.
	problem error
}

// Renew renews the lease periodically until ctx ends, and then returns nil. It
// returns an errLost when another node holds the lease, or could. Each renewal
// stores the result of annotation for the successor. If the API server refuses an
// annotation, the last one that it has accepted stays.
func (l *Lease) Renew(ctx context.Context, annotation func() string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &renewal{
		Lease: l, expiry: time.NewTimer(time.Until(l.renewed.Add(l.Deadline))),
		finished: make(chan attempt, maxAttempts), problem: errNoAnswer,
	}
	defer r.expiry.Stop()
	ticker := time.NewTicker(l.Period)
	defer ticker.Stop()
	if time.Since(l.renewed) > l.Deadline/2 {
		r.ask(ctx, annotation()) // the answer to the first write has taken most of the time
	} else {
		r.begin(ctx, annotation())
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case a := <-r.finished:
			err = r.end(a)
		case <-ticker.C:
			if r.running == 0 || r.running < maxAttempts && time.Since(r.begun) > l.Retry {
				r.begin(ctx, annotation())
			}
		case <-r.expiry.C:
			err = r.expire(ctx, annotation)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

// begin begins an attempt.
func (r *renewal) begin(ctx context.Context, annotation string) {
	r.running++
	r.begun = time.Now()
	last := r.last
	go func() { r.finished <- r.renew(ctx, last, annotation) }()
}

// ask begins an attempt that may take longer than the deadline. Until the lease's
// duration is over, no other node can hold the lease. After that, this process was
// stopped, and has Retry to learn who does.
func (r *renewal) ask(ctx context.Context, annotation string) {
	r.asking = true
	left := time.Until(r.renewed.Add(r.Duration))
	if left <= 0 {
		left = r.Retry
	}
	r.expiry.Reset(left)
	r.begin(ctx, annotation)
}

// end handles a finished attempt. It returns an error if the lease is lost.
func (r *renewal) end(a attempt) error {
	r.running--
	switch {
	case errors.Is(a.err, errLost):
		return a.err
	case a.err != nil:
		r.problem = a.err
	case a.sent.After(r.renewed):
		r.last, r.renewed, r.problem = a.written, a.sent, errNoAnswer
		// A late answer to an attempt from before the stop is not the answer it asks for.
		if left := time.Until(r.renewed.Add(r.Deadline)); left > 0 || !r.asking {
			r.expiry.Reset(left)
			r.asking = false
		}
	}
	return nil
}

// expire handles the expiry of the lease. It returns an error unless the lease was
// renewed just now or this process was stopped.
func (r *renewal) expire(ctx context.Context, annotation func() string) error {
	switch {
	case len(r.finished) > 0:
		r.expiry.Reset(0)
		return r.end(<-r.finished)
	case !r.asking && r.running < maxAttempts && time.Since(r.renewed) > r.Deadline+r.Period:
		// The timer fired late: this process was stopped.
		r.ask(ctx, annotation())
		return nil
	default:
		return fmt.Errorf("%w: lease %s was not renewed for %s: %w", errLost, leaseName, r.Deadline, r.problem)
	}
}

// renew writes the lease. After a conflict it reads the lease, and writes it again if
// this node still holds it: another attempt has written it then.
func (l *Lease) renew(ctx context.Context, last *unstructured.Unstructured, annotation string) attempt {
	a := l.write(ctx, last, annotation)
	if apierrors.IsInvalid(a.err) || apierrors.IsRequestEntityTooLargeError(a.err) {
		annotation = last.GetAnnotations()[annotationKey]
		a = l.write(ctx, last, annotation)
	}
	if !apierrors.IsConflict(a.err) {
		return a
	}
	seen, err := l.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return attempt{err: err}
	}
	if who := holder(seen); who != l.node {
		return attempt{err: fmt.Errorf("%w: node %s does", errLost, who)}
	}
	return l.write(ctx, seen, annotation)
}
