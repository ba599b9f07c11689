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
	first.leases, first.Deadline = strict{first.leases}, 20*time.Millisecond
	if err := first.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	holding, stop := context.WithCancel(ctx)
	notes := 0
	err := first.Renew(holding, func() string {
		switch notes++; {
		case notes == 1:
			return "accepted"
		case notes == 100: // far later than the deadline
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
