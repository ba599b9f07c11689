package lead

import (
	"context"
	"errors"
	"testing"
	"time"

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

func newLead(client dynamic.Interface, node string) *Lead {
	l := New(client, node)
	l.Duration, l.Deadline, l.Period = 100*time.Millisecond, 10*time.Second, time.Millisecond
	return l
}

func TestSuccessorTakesTheLeadOfANodeThatIsGone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := newClient()
	first, second := newLead(client, "n1"), newLead(client, "n2")
	if err := first.Take(ctx); err != nil {
		t.Fatal(err)
	}
	noted := make(chan struct{})
	holding, stop := context.WithCancel(ctx)
	held := make(chan error, 1)
	asked := 0
	go func() {
		held <- first.Hold(holding, func() string {
			if asked++; asked == 3 { // two were written by now
				close(noted)
			}
			return "so far"
		})
	}()
	<-noted
	stop()
	if err := <-held; err != nil {
		t.Fatalf("the leader that was told to stop says %v", err)
	}
	previous, note, err := second.Await(ctx)
	if err != nil || previous != "n1" || note != "so far" {
		t.Errorf("took over from %q with note %q, %v", previous, note, err)
	}
}

// The fake client does not compare resource versions, so here the lease has
// another holder when the first asks what it is.
func TestLeaderLearnsThatAnotherLeads(t *testing.T) {
	client := newClient()
	first := newLead(client, "n1")
	if err := first.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.leases = conflicting{first.leases}
	second := newLead(client, "n2")
	if _, err := second.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.claim(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := first.Hold(ctx, func() string { return "" }); !errors.Is(err, ErrLost) {
		t.Errorf("holding the lease of another ended with %v", err)
	}
}

func TestLeaderWithoutAnAPIServerGivesUp(t *testing.T) {
	first := newLead(newClient(), "n1")
	if err := first.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.leases, first.Deadline = silent{first.leases}, 20*time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := first.Hold(ctx, func() string { return "" }); !errors.Is(err, ErrLost) {
		t.Errorf("holding without an API server ended with %v", err)
	}
}
