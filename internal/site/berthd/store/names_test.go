package store

import (
	"context"
	"fmt"
	"path"
	"slices"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

// During an upgrade node by node, names written by a new berthd must not stop an old
// one. An old berthd takes all keys in etcd for allocations, and the last part of a
// key for a job.
func TestOlderBerthdLeavesNamesUnchanged(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	a, err := s.Allocate(t.Context(), request(1, 1000))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"", "n0"} {
		for _, names := range [][]string{{"web.default", "api"}, nil} {
			if _, err := s.SetNames(t.Context(), a, node, names); err != nil {
				t.Fatal(err)
			}
			got, err := s.client.Get(t.Context(), namesKey(a, node))
			if err != nil || len(got.Kvs) != 1 {
				t.Fatal(got, err)
			}
			seen, err := decode(got.Kvs[0].Value)
			if err != nil || seen.Login == "" || len(seen.Pods) > 0 || seen.ID() == a.ID() {
				t.Errorf("%s: it sees %+v, %v", got.Kvs[0].Value, seen, err)
			}
		}
		if last := path.Base(namesKey(a, node)); last != namesEnd {
			t.Errorf("when names go, %s is over for it", last)
		}
	}
	if known, err := s.read(t.Context()); err != nil || len(known.jobs) != 1 {
		t.Errorf("allocations: %v, %v", known.jobs, err)
	}
}

// This berthd ignores keys that a later version writes beside allocations.
func TestKeysOfNewerBerthdAreKept(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	a, err := s.Allocate(t.Context(), request(1, 1000))
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{
		networkPrefix("1000") + "later/1", networkPrefix("1000") + "later/2/1", namesPrefix(a) + fmt.Sprint(a.After), namesPrefix(a) + "x/" + namesEnd,
		networkPrefix("1000") + "1", networkPrefix("1000") + "pods/1/1",
	}
	for _, key := range keys {
		if _, err := s.client.Put(t.Context(), key, `["no allocation"]`); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys[:5] {
		if _, err := s.client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Allocate(t.Context(), request(2, 1000)); err != nil {
		t.Fatal(err)
	}
	var seen []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = s.Watch(ctx, "1000", a.After, func(c Change) {
		if seen = append(seen, c.ID); c.ID == "2" {
			cancel()
		}
	})
	if !slices.Equal(seen, []string{"1", "2"}) {
		t.Errorf("watched: %v (%v)", seen, err)
	}
	known, err := s.List(t.Context(), "")
	if err != nil || len(known.Jobs) != 2 || len(known.Names)+len(known.At) > 0 {
		t.Errorf("%+v, %v", known, err)
	}
}

// Keys are distinguished by position, whatever name a group has.
func TestKeysOfNames(t *testing.T) {
	a := siteconf.Allocation{Job: 7, Group: namesPart, After: 9}
	for _, node := range []string{"", "n0", namesEnd, namesPart} {
		key := namesKey(a, node)
		if which, found := parseNamesKey(key); !found || which != (Part{"7", 9, node}) {
			t.Errorf("%s: %v, %t", key, which, found)
		}
		if _, found := parseAtKey(key); found || isPods(key) {
			t.Errorf("%s is one of addresses", key)
		}
	}
	for _, key := range []string{
		podsKey(a), atKey(a, "n0"), podsKey(siteconf.Allocation{Job: 7, Group: atPart}),
		namesPrefix(a) + "9/n0", namesPrefix(a) + "9//" + namesEnd, namesPrefix(a) + "9/n0/later/" + namesEnd, namesPrefix(a) + "9/n0/later",
	} {
		if _, found := parseNamesKey(key); found {
			t.Errorf("%s is one of names", key)
		}
	}
}
