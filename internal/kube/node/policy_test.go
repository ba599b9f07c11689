package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/network/policy"
	"berth.dev/berth/internal/testutil"
)

// policyBench is a filter whose nft records its input.
type policyBench struct {
	*policyFilter
	executed []string
	fail     error
	notices  []string
}

func newPolicyBench(t *testing.T) *policyBench {
	plan := cluster.Plan{Node: cluster.Node{Name: "own"}, Paths: cluster.Paths{Run: t.TempDir()}}
	b := &policyBench{}
	b.policyFilter = &policyFilter{plan: plan, log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	b.notice = func(text string) { b.notices = append(b.notices, text) }
	b.nft = func(_ context.Context, path string) error {
		text, err := os.ReadFile(path)
		b.executed = append(b.executed, string(text))
		return errors.Join(err, b.fail)
	}
	b.look()
	return b
}

var ownPod = netip.MustParseAddr("10.0.0.1")

func isolating(uid types.UID) *policy.State {
	return &policy.State{Pods: map[netip.Addr]policy.Pod{ownPod: {UID: uid, Node: "own", Ingress: &policy.Isolation{}}}}
}

func (b *policyBench) expect(t *testing.T, s *policy.State, runs int) {
	t.Helper()
	before := len(b.executed)
	if err := b.enforce(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := len(b.executed) - before; got != runs {
		t.Errorf("nft ran %d times, not %d: %q", got, runs, b.executed)
	}
}

func TestOnlyChangedRulesAreLoaded(t *testing.T) {
	b := newPolicyBench(t)
	b.expect(t, &policy.State{}, 0)
	b.expect(t, isolating("a"), 1)
	b.expect(t, isolating("a"), 0)
	b.expect(t, &policy.State{Pending: true}, 0)
	b.expect(t, &policy.State{}, 1)
	if last := b.executed[len(b.executed)-1]; last != policy.Removal() {
		t.Errorf("without policies nft executed %q", last)
	}
	b.expect(t, &policy.State{}, 0)
}

func TestRulesOfEarlierProcessAreReplaced(t *testing.T) {
	b := newPolicyBench(t)
	b.expect(t, isolating("a"), 1)
	b.look() // as a new life does
	b.expect(t, isolating("a"), 1)
	b.look()
	b.expect(t, &policy.State{}, 1)
	b.look()
	b.expect(t, &policy.State{}, 0)
}

func TestRefusedRulesAreRetried(t *testing.T) {
	b := newPolicyBench(t)
	b.expect(t, &policy.State{}, 0)
	b.fail = errors.New("no such kernel")
	for range 2 {
		if err := b.enforce(t.Context(), isolating("a")); err == nil {
			t.Error("no error")
		}
	}
	if !b.state.Pending || len(b.notices) != 1 || !strings.Contains(b.notices[0], "no such kernel") {
		t.Errorf("state %v, notices %q", b.state, b.notices)
	}
	b.fail = nil
	b.expect(t, isolating("a"), 1)
}

func TestContainersWaitForPodPolicies(t *testing.T) {
	b := newPolicyBench(t)
	asked := 0
	addresses := func(context.Context) ([]netip.Addr, error) { asked++; return []netip.Addr{ownPod}, nil }
	wait := func() <-chan error {
		done := make(chan error, 1)
		go func() { done <- b.await(t.Context(), "a", addresses) }()
		return done
	}
	passed := func(done <-chan error) bool {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return true
		default:
			return false
		}
	}
	first := wait()
	b.expect(t, &policy.State{}, 0)
	testutil.Eventually(t, "a container passes where there are no policies", func() bool { return passed(first) })
	if asked != 0 {
		t.Error("addresses were asked for where there are no policies")
	}

	b.expect(t, &policy.State{Pending: true}, 0)
	second := wait()
	for _, s := range []*policy.State{{Pods: map[netip.Addr]policy.Pod{}}, isolating("the one before it")} {
		if err := b.enforce(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if passed(second) {
			t.Errorf("a container passed with %+v", s)
		}
	}
	b.expect(t, isolating("a"), 0) // the rules of the previous case are in force
	testutil.Eventually(t, "a container passes once its pod is known", func() bool { return passed(second) })

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.await(ctx, "another", addresses); err == nil {
		t.Error("no error for a pod whose policies are not in force")
	}
}
