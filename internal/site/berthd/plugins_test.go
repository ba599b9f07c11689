package berthd

import (
	"net/netip"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

// A job has no addresses until plugins have assigned them. All nodes receive them,
// and no two pods have the same.
func TestAddressesOfPluginsArePublished(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	s.config.CNI.List = "/site.conflist"
	allocate := func(job uint32) siteconf.Allocation {
		a, err := s.Allocate(t.Context(), Request{Job: job, UID: 1000, Nodes: []string{"n0", "n1"}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	publish := func(a siteconf.Allocation, node, address string) error {
		return s.Publish(t.Context(), with(a, node, netip.MustParseAddr(address)), node)
	}
	seen := func(id string) string {
		known, err := s.list(t.Context(), networkPrefix("1000"))
		if err != nil {
			t.Fatal(err)
		}
		f := newFollower("", nil)
		f.set(known)
		var all []string
		for _, pod := range f.all()[id].Pods {
			all = append(all, pod.Address.String())
		}
		return strings.Join(all, " ")
	}
	first, second := allocate(1), allocate(2)
	if got := seen("1"); got != "invalid IP invalid IP" {
		t.Errorf("before plugins were asked: %s", got)
	}
	for range 2 {
		if err := publish(first, "n0", "10.128.0.7"); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(first, "n1", "10.128.0.9"); err != nil {
		t.Fatal(err)
	}
	if got := seen("1"); got != "10.128.0.7 10.128.0.9" {
		t.Errorf("afterwards: %s", got)
	}
	if err := publish(second, "n1", "10.128.0.7"); err == nil || !strings.Contains(err.Error(), "1 on n0 has it") {
		t.Errorf("an address of another pod: %v", err)
	}
	// Plugins of n0 may assign an address again that was returned to them, before
	// etcd learns of the return.
	if err := publish(second, "n0", "10.128.0.7"); err != nil {
		t.Errorf("an address that was given back: %v", err)
	}
	for _, node := range []string{"n0", "n1"} {
		if err := s.Leave(t.Context(), first, node); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(first, "n0", "10.128.0.8"); err == nil || !strings.Contains(err.Error(), "released meanwhile") {
		t.Errorf("a job that is over: %v", err)
	}
	if err := publish(second, "n1", "10.128.0.9"); err != nil {
		t.Errorf("an address of a job that is over: %v", err)
	}
	if err := s.Free(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if known, err := s.list(t.Context(), networksKey); err != nil || len(known.jobs)+len(known.at) > 0 {
		t.Errorf("left: %v, %v", known, err)
	}
}

func TestKeysOfAddressesAreRead(t *testing.T) {
	a := siteconf.Allocation{Login: "login1", UID: 1000, After: 12}
	if where, found := placeOf(atKey(a, "n0")); !found || where != (place{a.ID(), 12, "n0"}) {
		t.Errorf("%v, %t", where, found)
	}
	for _, key := range []string{podsKey(a), leftKey(a, "n0"), networksKey + "1000/at/1/x/n0", networksKey + "1000/at/1/2"} {
		if where, found := placeOf(key); found {
			t.Errorf("%s is %v", key, where)
		}
	}
}
