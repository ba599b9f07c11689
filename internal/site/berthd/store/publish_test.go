package store

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
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
		return s.Publish(t.Context(), a.With(node, netip.MustParseAddr(address)), node)
	}
	seen := func(id string) string {
		known, err := s.List(t.Context(), "1000")
		if err != nil {
			t.Fatal(err)
		}
		a := known.Jobs[id]
		var all []string
		for _, pod := range a.Pods {
			all = append(all, known.At[Part{id, a.After, pod.Node}].String())
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
	if known, err := s.List(t.Context(), ""); err != nil || len(known.Jobs)+len(known.At) > 0 {
		t.Errorf("left: %v, %v", known, err)
	}
}

func TestKeysOfAddressesAreRead(t *testing.T) {
	a := siteconf.Allocation{Login: "login1", UID: 1000, After: 12}
	if where, found := parseAtKey(atKey(a, "n0")); !found || where != (Part{a.ID(), 12, "n0"}) {
		t.Errorf("%v, %t", where, found)
	}
	for _, key := range []string{podsKey(a), leftKey(a, "n0"), networksKey + "1000/at/1/x/n0", networksKey + "1000/at/1/2"} {
		if where, found := parseAtKey(key); found {
			t.Errorf("%s is %v", key, where)
		}
	}
}

// Plugins of two nodes assign the same address at the same moment.
func TestNoTwoPublishAnAddress(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	s.config.CNI.List = "/site.conflist"
	address := netip.MustParseAddr("10.128.0.7")
	var both [2]siteconf.Allocation
	for i := range both {
		var err error
		if both[i], err = s.Allocate(t.Context(), Request{Job: uint32(i + 1), UID: 1000, Nodes: []string{fmt.Sprintf("n%d", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	second := PartOf(both[1], "n1")
	seen, err := s.checkUnused(t.Context(), address, second)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(t.Context(), both[0].With("n0", address), "n0"); err != nil {
		t.Fatal(err)
	}
	if err := s.checkUnusedSince(t.Context(), address, second, seen); err == nil || !strings.Contains(err.Error(), "1 on n0 has it") {
		t.Errorf("who found nobody before: %v", err)
	}
	if err := s.Withdraw(t.Context(), both[0], "n0"); err != nil {
		t.Fatal(err)
	}
	var problems [2]error
	var all sync.WaitGroup
	for i := range both {
		all.Go(func() {
			node := fmt.Sprintf("n%d", i)
			problems[i] = s.Publish(t.Context(), both[i].With(node, address), node)
		})
	}
	all.Wait()
	known, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	succeeded := 0
	for _, problem := range problems {
		if problem == nil {
			succeeded++
		}
	}
	if succeeded > 1 || len(known.At) != succeeded {
		t.Errorf("%v, etcd has %v", problems, known.At)
	}
}
