package berthd

import (
	"log/slog"
	"net/netip"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

// A network is followed while it has a pod here or a request waits for it, and only after the
// start.
func TestNetworkIsWatchedWhileUsed(t *testing.T) {
	d := newDaemon(siteconf.Config{}, "n0", netip.Addr{}, newStore(t, testConfig()), nil, slog.New(slog.DiscardHandler))
	follows := func(when string, want bool) {
		t.Helper()
		if got := d.watch.network("1000") != nil; got != want {
			t.Errorf("%s: is followed: %t, want %t", when, got, want)
		}
	}
	put := func(a siteconf.Allocation) {
		d.pods.mu.Lock()
		defer d.pods.mu.Unlock()
		d.pods.put(&localPod{Allocation: a})
	}
	put(siteconf.Allocation{Job: 1, UID: 1000})
	follows("before the start", false)
	d.watch.start(t.Context(), false)
	follows("a pod of the previous daemon", true)
	f := d.watch.follow("1000")
	if f != d.watch.network("1000") {
		t.Error("a request has another follower")
	}
	d.pods.take("1")
	d.pods.take("1")
	follows("a request waits", true)
	put(siteconf.Allocation{Job: 2, UID: 1000, After: 1})
	put(siteconf.Allocation{Job: 2, UID: 1000, After: 2})
	d.watch.unfollow("1000")
	follows("the request has a pod", true)
	// The job belongs to another network now.
	put(siteconf.Allocation{Job: 2, UID: 1000, Group: "lab", After: 3})
	follows("the pod is in another network", false)
	d.pods.take("2")
	if len(d.watch.users) > 0 || len(d.watch.networks) > 0 {
		t.Errorf("without pods and requests: %v, %v", d.watch.users, d.watch.networks)
	}
}
