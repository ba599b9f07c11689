package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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
	noted := make(chan struct{})
	holding, stop := context.WithCancel(ctx)
	held := make(chan error, 1)
	asked := 0
	go func() {
		held <- first.Renew(holding, func() string {
			if asked++; asked == 3 { // two renewals have been written
				close(noted)
			}
			return "so far"
		})
	}()
	<-noted
	stop()
	if err := <-held; err != nil {
		t.Fatalf("Renew returned %v after its context ended", err)
	}
	previous, note, err := second.AwaitExpiry(ctx)
	if err != nil || previous != "n1" || note != "so far" {
		t.Errorf("took over from %q with note %q, %v", previous, note, err)
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

// A note may be longer than the API server allows.
func TestRefusedNoteDoesNotEndTheLease(t *testing.T) {
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
	notes := 0
	err := first.Renew(holding, func() string {
		switch notes++; {
		case notes == 1:
			return "accepted"
		case refusing.accepted.Load() == 3: // the first note, which stays in two renewals
			stop()
		}
		return strings.Repeat("x", 256<<10)
	})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := first.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || seen.GetAnnotations()[noteKey] != "accepted" {
		t.Errorf("the lease has a note of %d bytes, %v", len(seen.GetAnnotations()[noteKey]), err)
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
	l.Duration = time.Hour // this process was not stopped
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
	if a := l.renew(t.Context(), l.last, "again"); a.err != nil || a.written == nil || a.written.GetAnnotations()[noteKey] != "again" || server.updates != 2 {
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
	note := func() string { return "" }
	l, r := begin()
	if err := r.expire(t.Context(), note); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.end(<-r.finished); err != nil || time.Since(l.renewed) > 50*time.Second {
		t.Errorf("no other node leads: %v; renewed %v ago", err, time.Since(l.renewed))
	}
	l, r = begin()
	l.leases = taken{l.leases}
	if err := r.expire(t.Context(), note); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.end(<-r.finished); !errors.Is(err, errLost) {
		t.Errorf("another node leads: %v", err)
	}
	l, r = begin()
	l.leases = silent{l.leases}
	if err := r.expire(t.Context(), note); err != nil {
		t.Fatalf("it did not ask: %v", err)
	}
	if err := r.expire(t.Context(), note); !errors.Is(err, errLost) {
		t.Errorf("without an answer: %v", err)
	}
}
