package berthd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
)

// A step on another node than the first learns what is missing, and the audit log has it.
func TestStepWithoutAddressesLearnsCause(t *testing.T) {
	w := newWired(t)
	f := w.following("1000")
	w.await("etcd has answered", f.listed)
	const short = 50 * time.Millisecond
	_, err := w.attach(t.Context(), store.Request{Job: 1, UID: 1000, User: "alice"}, short)
	if err == nil || !strings.Contains(err.Error(), "it has none after 50ms: the first node of the job has not asked for them") || strings.Contains(err.Error(), "etcd") {
		t.Errorf("etcd answers: %v", err)
	}
	f.fail(errors.New("connection refused"))
	_, err = w.attach(t.Context(), store.Request{Job: 2, UID: 1000, User: "alice"}, short)
	if err == nil || !strings.Contains(err.Error(), "etcd has not answered: connection refused") || strings.Contains(err.Error(), "first node") {
		t.Errorf("etcd does not answer: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "audit.log"))
	if err != nil || strings.Count(string(text), `"event":"refused"`) != 2 || !strings.Contains(string(text), `"user":"alice","job":2`) {
		t.Errorf("%v, the audit log has %s", err, text)
	}
}

// A requeued job keeps its number. It may get addresses here before this node learns
// that its former ones are free.
func TestFreeingOldAllocationKeepsNewOne(t *testing.T) {
	w := newWired(t)
	former := w.allocate(1, 1000)
	f := w.following("1000")
	w.await("the job is seen", func() bool { return f.all()["1"].Job == 1 })
	later := former
	later.After++
	w.pods.mu.Lock()
	w.pods.put(&localPod{Allocation: later})
	w.pods.mu.Unlock()
	f.put(later)
	if err := w.store.Free(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	w.allocate(2, 1000)
	w.await("what came after that is seen", func() bool { return f.all()["2"].Job == 2 })
	if got := f.all()["1"].After; got != later.After {
		t.Errorf("the follower has the allocation after %d, want %d", got, later.After)
	}
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	if w.pods.local["1"] == nil {
		t.Error("its pod is dropped")
	}
}

func TestAllocationIsForgottenWithItsAddresses(t *testing.T) {
	w := newWired(t)
	a := w.allocate(1, 1000)
	f := w.following("1000")
	w.await("the job is seen", func() bool { return f.all()["1"].Job == 1 })
	if err := w.store.Free(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.await("the job is forgotten", func() bool { _, there := f.all()["1"]; return !there })
}
