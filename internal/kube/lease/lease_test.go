package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

func newClient() dynamic.Interface {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}: "LeaseList",
	})
}

func newLease(client dynamic.Interface, node string) *Lease {
	l := New(client, node)
	l.Duration, l.Deadline, l.Period = 100*time.Millisecond, 10*time.Second, time.Millisecond
	l.Retry = 10 * time.Second
	return l
}

func TestSuccessorAcquiresAnExpiredLease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := newClient()
	first, second := newLease(client, "n1"), newLease(client, "n2")
	if err := first.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	annotated := make(chan struct{})
	holding, stop := context.WithCancel(ctx)
	held := make(chan error, 1)
	asked := 0
	go func() {
		held <- first.Renew(holding, func() string {
			if asked++; asked == 3 { // two renewals have been written
				close(annotated)
			}
			return "so far"
		})
	}()
	<-annotated
	stop()
	if err := <-held; err != nil {
		t.Fatalf("Renew returned %v after its context ended", err)
	}
	previous, annotation, err := second.AwaitExpiry(ctx)
	if err != nil || previous != "n1" || annotation != "so far" {
		t.Errorf("took over from %q with annotation %q, %v", previous, annotation, err)
	}
}

// The fake client does not compare resource versions, so the test makes the
// update conflict and stores another holder before the first node reads it.
func TestRenewFailsWhenAnotherNodeHoldsTheLease(t *testing.T) {
	client := newClient()
	first := newLease(client, "n1")
	if err := first.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.leases = conflicting{first.leases}
	second := newLease(client, "n2")
	if _, err := second.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.takeOver(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := first.Renew(ctx, func() string { return "" }); !errors.Is(err, errLost) {
		t.Errorf("renewing the lease of another node returned %v", err)
	}
}

// An annotation may be longer than the API server allows.
func TestRefusedAnnotationDoesNotEndTheLease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := newClient()
	first := newLease(client, "n1")
	refusing := &strict{ResourceInterface: first.leases}
	first.leases = refusing
	if err := first.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	holding, stop := context.WithCancel(ctx)
	annotations := 0
	err := first.Renew(holding, func() string {
		switch annotations++; {
		case annotations == 1:
			return "accepted"
		case refusing.accepted.Load() == 3: // the first annotation, which stays in two renewals
			stop()
		}
		return strings.Repeat("x", 256<<10)
	})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := first.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || seen.GetAnnotations()[annotationKey] != "accepted" {
		t.Errorf("the lease has an annotation of %d bytes, %v", len(seen.GetAnnotations()[annotationKey]), err)
	}
}

func TestRenewFailsWithoutAnAPIServer(t *testing.T) {
	first := newLease(newClient(), "n1")
	if err := first.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.leases, first.Deadline = silent{first.leases}, 20*time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := first.Renew(ctx, func() string { return "" }); !errors.Is(err, errLost) {
		t.Errorf("renewing without an API server returned %v", err)
	}
}

// A busy API server answers late. The test's server answers the first attempt only
// when another one has begun, and that one never.
func TestSlowAnswerRenewsTheLease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first := newLease(newClient(), "n1")
	if err := first.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	server := &slow{ResourceInterface: first.leases, another: make(chan struct{})}
	first.leases, first.Retry, first.Duration = server, time.Millisecond, time.Hour
	holding, stop := context.WithCancel(ctx)
	if err := first.Renew(holding, func() string {
		if server.answered.Load() {
			stop()
		}
		return ""
	}); err != nil || !server.answered.Load() {
		t.Errorf("Renew returned %v; answered: %v", err, server.answered.Load())
	}
}

// A successor counts from the moment when it sees a renewal. So the holder counts from
// the moment before it sent the renewal, and not from the late answer.
func TestHolderCountsFromBeforeTheRequest(t *testing.T) {
	l := newLease(newClient(), "n1")
	r := &renewal{Lease: l, expiry: time.NewTimer(time.Hour), running: 1}
	sent := time.Now().Add(-l.Deadline - time.Second)
	if err := r.end(attempt{sent: sent}); err != nil || !l.renewed.Equal(sent) {
		t.Errorf("the lease counts from %v, not from %v; %v", l.renewed, sent, err)
	}
	l.Period = time.Hour // this process was not stopped
	<-r.expiry.C
	if err := r.expire(t.Context(), nil); !errors.Is(err, errLost) {
		t.Errorf("a late answer extended the lease: %v", err)
	}
}

// A conflict with an earlier attempt of this node does not tell when that one has
// renewed the lease, so the lease is written again.
func TestConflictWithAnEarlierAttemptWritesAgain(t *testing.T) {
	l := newLease(newClient(), "n1")
	if err := l.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := &conflictingOnce{ResourceInterface: l.leases}
	l.leases = server
	if a := l.renew(t.Context(), l.last, "again"); a.err != nil || a.written == nil || a.written.GetAnnotations()[annotationKey] != "again" || server.updates != 2 {
		t.Errorf("after %d writes: %+v", server.updates, a)
	}
}

// A process that was stopped for longer than the lease lasts asks who holds it.
func TestStoppedHolderAsksWhetherItStillLeads(t *testing.T) {
	begin := func() (*Lease, *renewal) {
		l := newLease(newClient(), "n1")
		if err := l.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.renewed = time.Now().Add(-time.Minute)
		return l, &renewal{Lease: l, expiry: time.NewTimer(time.Hour), finished: make(chan attempt, maxAttempts), problem: errNoAnswer}
	}
	annotation := func() string { return "" }
	l, r := begin()
	if err := r.expire(t.Context(), annotation); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.end(<-r.finished); err != nil || time.Since(l.renewed) > 50*time.Second {
		t.Errorf("no other node leads: %v; renewed %v ago", err, time.Since(l.renewed))
	}
	l, r = begin()
	l.leases = taken{l.leases}
	if err := r.expire(t.Context(), annotation); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.end(<-r.finished); !errors.Is(err, errLost) {
		t.Errorf("another node leads: %v", err)
	}
	l, r = begin()
	l.leases = silent{l.leases}
	if err := r.expire(t.Context(), annotation); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.expire(t.Context(), annotation); !errors.Is(err, errLost) {
		t.Errorf("without an answer: %v", err)
	}
}

// A node that was stopped for less than the lease's duration asks, too.
func TestHolderStoppedForAShortTimeAsks(t *testing.T) {
	l := New(newClient(), "n1")
	if err := l.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.renewed = time.Now().Add(-l.Deadline - 2*l.Period)
	r := &renewal{Lease: l, expiry: time.NewTimer(time.Hour), finished: make(chan attempt, maxAttempts), problem: errNoAnswer}
	if err := r.expire(t.Context(), func() string { return "" }); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.end(<-r.finished); err != nil || r.asking {
		t.Errorf("no other node leads: %v; still asking: %v", err, r.asking)
	}
}

// Without an answer, it gives up before another node may hold the lease.
func TestStalledHolderGivesUpBeforeTheLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(newClient(), "n1")
		if err := l.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		acquired := l.renewed
		l.leases = silent{l.leases}
		annotations := 0
		err := l.Renew(t.Context(), func() string {
			if annotations++; annotations == 2 {
				time.Sleep(7 * time.Second) // from the fourth second to the eleventh
			}
			return ""
		})
		if took := time.Since(acquired); !errors.Is(err, errLost) || took <= l.Deadline+l.Period || took > l.Duration {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

// An answer from before the stop does not extend the time to ask.
func TestAnswerFromBeforeTheStopDoesNotEndTheQuestion(t *testing.T) {
	l := New(newClient(), "n1")
	r := &renewal{Lease: l, expiry: time.NewTimer(time.Hour), running: 2, asking: true}
	if err := r.end(attempt{sent: time.Now().Add(-time.Minute)}); err != nil || !r.asking {
		t.Errorf("%v; still asking: %v", err, r.asking)
	}
	if err := r.expire(t.Context(), nil); !errors.Is(err, errLost) {
		t.Errorf("without an answer: %v", err)
	}
}

func TestLeaseThatTookLongToAcquireIsRenewed(t *testing.T) {
	for _, takes := range []time.Duration{8900 * time.Millisecond, 9500 * time.Millisecond, 13 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := New(newClient(), "n1")
			l.leases = slowCreate{l.leases, takes}
			if err := l.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := l.Renew(ctx, func() string { time.Sleep(200 * time.Millisecond); return "" }); err != nil {
				t.Errorf("created in %s: %v", takes, err)
			}
		})
	}
}

// The answer to a takeover may be late. The next reads then find this node's own write.
func TestLateAnswerKeepsThePreviousHolder(t *testing.T) {
	for _, outage := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			client := newClient()
			first, second := New(client, "n1"), New(client, "n2")
			if err := first.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a := first.renew(t.Context(), first.last, "so far"); a.err != nil {
				t.Fatal(a.err)
			}
			server := &late{ResourceInterface: second.leases, outage: outage}
			second.leases = server
			previous, annotation, err := second.AwaitExpiry(t.Context())
			if err != nil || previous != "n1" || annotation != "so far" {
				t.Errorf("took over from %q with annotation %q, %v", previous, annotation, err)
			}
			if outage == 0 && second.renewed.After(server.written) {
				t.Error("the lease counts from after its write")
			}
			if age := time.Since(second.renewed); age > second.Deadline {
				t.Errorf("the lease counts from %s ago", age)
			}
		})
	}
}

// The API server closes the connection while a node acquires the lease.
func TestLeaseIsAcquiredAfterAnOutage(t *testing.T) {
	for _, creates := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client := newClient()
			l := newLease(client, "n1")
			server := &closing{ResourceInterface: l.leases, creates: creates}
			l.leases = server
			if err := l.Acquire(t.Context()); err != nil || server.calls != 3 || holder(l.last) != "n1" || time.Since(l.renewed) > 0 {
				t.Errorf("created=%v: %v after %d calls, lease %v, renewed at %s", creates, err, server.calls, l.last, l.renewed)
			}
			other := newLease(client, "n2")
			other.leases = &closing{ResourceInterface: other.leases}
			if err := other.Acquire(t.Context()); !errors.Is(err, errLost) || !strings.Contains(err.Error(), "node n1 holds it") {
				t.Errorf("another node acquires the lease: %v", err)
			}
			if err := newLease(client, "n1").Acquire(t.Context()); !apierrors.IsAlreadyExists(err) {
				t.Errorf("a lease of an earlier run is acquired: %v", err)
			}
		})
	}
}
