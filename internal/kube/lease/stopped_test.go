package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Slurm may suspend a job for longer than the lease lasts. Its nodes do not continue at
// the same moment, and the head keeps the lease.
func TestStoppedSuccessorLeavesTheLeaseToTheHolder(t *testing.T) {
	const stop = time.Minute
	for name, holderContinues := range map[string]time.Duration{
		"the successor first":      stop + 5*time.Second,
		"the successor just first": stop + time.Millisecond,
		"the holder first":         stop - 5*time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				server := &versioned{ResourceInterface: New(newClient(), "").leases}
				first, second := New(newClient(), "n1"), New(newClient(), "n2")
				first.leases, second.leases = server, &stopping{ResourceInterface: server, until: began.Add(stop)}
				if err := first.Acquire(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*stop)
				defer cancel()
				held := make(chan error)
				go func() {
					annotations := 0
					held <- first.Renew(ctx, func() string {
						if annotations++; annotations == 3 {
							time.Sleep(time.Until(began.Add(holderContinues)))
						}
						return ""
					})
				}()
				if previous, _, err := second.AwaitExpiry(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the successor leads after %q, %v", previous, err)
				}
				if err := <-held; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A holder that does not continue loses the lease.
func TestStoppedSuccessorTakesOverLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient()
		first, second := New(client, "n1"), New(client, "n2")
		if err := first.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		continued := time.Now().Add(time.Minute)
		second.leases = &stopping{ResourceInterface: second.leases, until: continued}
		previous, _, err := second.AwaitExpiry(t.Context())
		if took := time.Since(continued); previous != "n1" || err != nil || took < second.Duration || took > second.Duration+2*second.Period {
			t.Errorf("took over from %q after %s, %v", previous, took, err)
		}
	})
}

// A slow API server does not make a successor wait for the whole duration again.
func TestSlowAnswersDoNotExtendTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient()
		first, second := New(client, "n1"), New(client, "n2")
		if err := first.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		began, slow := time.Now(), second.Deadline/2-time.Millisecond
		server := &unanswered{ResourceInterface: second.leases, takes: slow}
		second.leases = server
		previous, _, err := second.AwaitExpiry(t.Context())
		// The first read, one before each write, and the write without an answer.
		if took := time.Since(began); previous != "n1" || err != nil || server.updates != 2 || took > second.Duration+5*slow {
			t.Errorf("took over from %q after %s, %v", previous, took, err)
		}
	})
}

// On processors that are so busy that each answer seems to come after a stop, a successor
// waits only once more for the whole duration.
func TestRepeatedDelaysDoNotExtendTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient()
		first, second := New(client, "n1"), New(client, "n2")
		if err := first.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		began, slow := time.Now(), second.Deadline/2+3*second.Period
		second.leases = &unanswered{ResourceInterface: second.leases, takes: slow}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		previous, _, err := second.AwaitExpiry(ctx)
		// As above, and the read after which the lease gets its duration again.
		if took := time.Since(began); previous != "n1" || err != nil || took > 2*second.Duration+5*slow {
			t.Errorf("took over from %q after %s, %v", previous, took, err)
		}
	})
}
