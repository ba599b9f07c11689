package store

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// FuzzRecord reads any key and value in etcd, as another version of berthd, an administrator or
// another program may have written it.
func FuzzRecord(f *testing.F) {
	a := siteconf.Allocation{Job: 7, UID: 1000, User: "alice", Group: "lab", Name: "shop", VNI: 1, After: 9}
	for _, text := range []string{
		`{"job":7,"uid":1000,"user":"alice","name":"shop","vni":1,"pods":[{"node":"n0","address":"10.128.0.2","via":"192.168.0.1"}],"after":9}`,
		`{"login":"login1","uid":1000,"pods":[{"node":"login1","address":"","via":"192.168.0.1"}]}`,
		`{"job":1,"pods":[{"node":"n0","address":"fd42::1","via":"192.168.0.1"}]}`,
		`{"problem":"no addresses"}`, `null`, `[]`,
	} {
		f.Add(podsKey(a), []byte(text), false)
	}
	f.Add(podsKey(a), []byte(nil), true)
	f.Add(atKey(a, "n0"), []byte("10.128.0.2"), false)
	f.Add(atKey(a, "n0"), []byte("fd42::1"), false)
	f.Add(networksKey+"/at//9/", []byte("10.128.0.2"), true)
	for _, node := range []string{"", "n0"} {
		f.Add(namesKey(a, node), []byte(`{"login":"names","names":["web.default","api"]}`), false)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte, deleted bool) {
		fuzzbound.Watch(t)
		c, known, err := parse(&mvccpb.KeyValue{Key: []byte(key), Value: value, ModRevision: 3}, deleted)
		if err != nil {
			return
		}
		if known != (isPods(key) || c.At != nil || c.Owner != nil) || c.At != nil && c.Owner != nil {
			t.Errorf("%s: %+v", key, c)
		}
		if c.At != nil && (c.At.Node == "" || c.Address.IsValid() && !c.Address.Is4()) {
			t.Errorf("%s: the address %s on %q", key, c.Address, c.At.Node)
		}
		if c.Owner != nil && deleted != (c.Names.Names == nil) {
			t.Errorf("%s: deleted: %t, and it has %v", key, deleted, c.Names)
		}
		if c.Allocation != nil {
			checkAllocation(t, *c.Allocation)
		}
	})
}

// checkAllocation calls all that the daemon computes of an allocation.
func checkAllocation(t *testing.T, a siteconf.Allocation) {
	t.Helper()
	for _, domain := range a.Domains("site", nil) {
		for label := range strings.SplitSeq(domain, ".") {
			if label == "" || len(label) > 63 {
				t.Errorf("the domain %s of %+v", domain, a)
			}
		}
	}
	for _, pod := range a.Pods {
		if pod.Address.IsValid() {
			siteconf.MAC(pod.Address)
		}
	}
	first, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	again, err := decode(first)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := json.Marshal(again); err != nil || !bytes.Equal(first, second) {
		t.Errorf("%s is written as %s, %v", first, second, err)
	}
}
