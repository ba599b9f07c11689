package main

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
)

// example: alice has two jobs called db, the second one newer, one that is
// called like the number of the first, and sessions on a login host; bob has his
// own db; carol and dave share a network.
const example = `{"cluster":"alps","range":"10.1.0.0/24","ipv6":"fd42::/96","pods":[
{"address":"10.1.0.2","network":7,"uid":1,"user":"alice","name":"db","number":41,"index":0,"after":5},
{"address":"10.1.0.3","network":7,"uid":1,"user":"alice","name":"db","number":41,"index":1,"after":5,"names":["web.default","shop"],"served":["cache"]},
{"address":"10.1.0.4","network":7,"uid":1,"user":"alice","name":"db","number":42,"index":0,"after":9,"served":["cache"]},
{"address":"10.1.0.5","network":8,"uid":2,"user":"bob","name":"db","number":43,"index":0,"after":10},
{"address":"10.1.0.6","network":7,"uid":1,"user":"alice","name":"41","number":44,"index":0,"after":11},
{"address":"10.1.0.7","network":7,"uid":1,"user":"alice","name":"login1","index":0,"after":1},
{"address":"10.1.0.8","network":9,"uid":3,"user":"carol","name":"db","number":45,"index":0,"after":12},
{"address":"10.1.0.9","network":9,"uid":4,"user":"dave","name":"db","number":46,"index":0,"after":13}]}`

// server is the address of the name server, and of its host.
var server = netip.MustParseAddr("192.168.0.1")

func load(t *testing.T) *table {
	t.Helper()
	path := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(path, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := (&file{path: path}).table()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestNamesResolveToPods(t *testing.T) {
	known := load(t)
	for _, test := range []struct {
		asker, name string
		ours        bool
		exists      bool
		want        []string
	}{
		{"10.1.0.4", "db.alice.alps.", true, true, []string{"10.1.0.4"}},
		{"10.1.0.4", "POD0.DB.Alice.Alps.", true, true, []string{"10.1.0.4"}},
		{"10.1.0.2", "db.alice.alps.", true, true, []string{"10.1.0.2", "10.1.0.3"}}, // its own, although another is newer
		{"10.1.0.2", "pod1.db.alice.alps.", true, true, []string{"10.1.0.3"}},
		{"10.1.0.7", "pod1.db.alice.alps.", true, false, nil},
		{"10.1.0.7", "pod1.41.alice.alps.", true, true, []string{"10.1.0.3"}}, // a number is nobody's else
		{"10.1.0.7", "login1.alice.alps.", true, true, []string{"10.1.0.7"}},
		{"10.1.0.7", "alice.alps.", true, true, nil},
		{"10.1.0.7", "alps.", true, true, nil},
		{"10.1.0.7", "pod00.41.alice.alps.", true, false, nil},
		{"10.1.0.7", "x.pod0.41.alice.alps.", true, false, nil},
		{"10.1.0.2", "web.default.db.alice.alps.", true, true, []string{"10.1.0.2", "10.1.0.3"}}, // what the user has named leads to all pods
		{"10.1.0.7", "shop.41.alice.alps.", true, true, []string{"10.1.0.2", "10.1.0.3"}},
		{"10.1.0.7", "shop.db.alice.alps.", true, false, nil},                  // the newer one is not called so
		{"10.1.0.2", "cache.db.alice.alps.", true, true, []string{"10.1.0.3"}}, // what a run in a pod serves leads there
		{"10.1.0.7", "cache.db.alice.alps.", true, true, []string{"10.1.0.4"}},
		{"10.1.0.7", "x.cache.db.alice.alps.", true, false, nil},
		{"10.1.0.5", "cache.41.alice.alps.", true, false, nil},
		{"10.1.0.7", "web.41.alice.alps.", true, false, nil},
		{"10.1.0.7", "default.41.alice.alps.", true, false, nil},
		{"10.1.0.7", "x.web.default.41.alice.alps.", true, false, nil},
		{"10.1.0.5", "shop.41.alice.alps.", true, false, nil},
		{"10.1.0.5", "pod0.41.alice.alps.", true, false, nil}, // bob does not see alice's
		{"10.1.0.5", "alice.alps.", true, false, nil},
		{"10.1.0.5", "db.bob.alps.", true, true, []string{"10.1.0.5"}},
		{"192.168.0.1", "db.bob.alps.", true, true, []string{"10.1.0.5"}}, // the host sees all
		{"192.168.0.1", "pod0.db.alice.alps.", true, true, []string{"10.1.0.4"}},
		{"10.1.0.9", "db.carol.alps.", true, true, []string{"10.1.0.8"}},
		{"10.1.0.9", "db.dave.alps.", true, true, []string{"10.1.0.9"}},
		{"10.1.0.9", "db.alice.alps.", true, false, nil},
		{"10.1.0.4", "db.carol.alps.", true, false, nil},
		{"10.1.0.99", "db.bob.alps.", true, false, nil}, // a pod of another node sees none
		{"10.1.0.4", "www.outside.test.", false, false, nil},
		{"10.1.0.4", "notalps.", false, false, nil},
	} {
		got := known.find(test.name, netip.MustParseAddr(test.asker), server)
		var addresses []string
		for _, a := range got.addresses {
			addresses = append(addresses, a.String())
		}
		if got.ours != test.ours || got.exists != test.exists || !slices.Equal(addresses, test.want) {
			t.Errorf("%s asks for %s: %+v, want %+v", test.asker, test.name, got, test)
		}
	}
}

// With CNI plugins the server has the host's address, which others reach.
func TestPodsAndHostAreServed(t *testing.T) {
	known := load(t)
	for _, test := range []struct {
		asker, server string
		want          bool
	}{
		{"10.1.0.99", "192.168.0.1", true}, {"192.168.0.1", "192.168.0.1", true}, {"10.1.0.1", "10.1.0.1", true},
		{"192.168.0.2", "192.168.0.1", false}, {"10.1.1.2", "10.1.0.1", false}, {"::1", "192.168.0.1", false},
	} {
		if got := known.serves(netip.MustParseAddr(test.asker), netip.MustParseAddr(test.server)); got != test.want {
			t.Errorf("%s asks %s: %t", test.asker, test.server, got)
		}
	}
}

func TestReverseLookup(t *testing.T) {
	known := load(t)
	for _, test := range []struct {
		asker, name, want string
		ours              bool
	}{
		{"10.1.0.2", "3.0.1.10.in-addr.arpa.", "pod1.db.alice.alps.", true},
		{"10.1.0.2", "5.0.1.10.in-addr.arpa.", "", true}, // bob's
		{"10.1.0.99", "5.0.1.10.in-addr.arpa.", "", true},
		{"192.168.0.1", "5.0.1.10.in-addr.arpa.", "pod0.db.bob.alps.", true},
		{"10.1.0.2", "99.0.1.10.in-addr.arpa.", "", true},
		{"10.1.0.2", "1.1.168.192.in-addr.arpa.", "", false},
		{"10.1.0.2", "3.0.0.0.1.0.a.0." + zeros(20) + "2.4.d.f.ip6.arpa.", "pod1.db.alice.alps.", true},
		{"10.1.0.2", "5.0.0.0.1.0.a.0." + zeros(20) + "2.4.d.f.ip6.arpa.", "", true},  // bob's
		{"10.1.0.2", "3.0.1.0.1.0.a.0." + zeros(20) + "2.4.d.f.ip6.arpa.", "", false}, // 10.1.1.3 is not a pod's
		{"10.1.0.2", "3.0.0.0.1.0.a.0." + zeros(20) + "3.4.d.f.ip6.arpa.", "", false},
		{"10.1.0.2", "2.4.d.f.ip6.arpa.", "", false},
	} {
		got := known.find(test.name, netip.MustParseAddr(test.asker), server)
		if got.ours != test.ours || got.name != test.want || got.exists != (test.want != "") {
			t.Errorf("%s asks for %s: %+v, want %+v", test.asker, test.name, got, test)
		}
	}
}

func zeros(n int) string { return strings.Repeat("0.", n) }

func TestPodsHaveSecondAddressFromRange(t *testing.T) {
	known := load(t)
	pod := netip.MustParseAddr("10.1.0.3")
	if got := known.second(pod).String(); got != "fd42::a01:3" {
		t.Errorf("the second address of %s is %s", pod, got)
	}
	if got := known.first(known.second(pod)); got != pod {
		t.Errorf("the first address is %s, want %s", got, pod)
	}
	known.IPv6 = netip.Prefix{}
	if got := known.second(pod); got.IsValid() {
		t.Errorf("without a range there is %s", got)
	}
	if got := known.find("3.0.0.0.1.0.a.0."+zeros(20)+"2.4.d.f.ip6.arpa.", pod, server); got.ours {
		t.Errorf("without a range: %+v", got)
	}
}

func TestChangedFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	replace := func(cluster string) {
		t.Helper()
		err := os.WriteFile(path+".new", []byte(`{"cluster":"`+cluster+`","range":"10.1.0.0/24"}`), 0o600)
		// As if all changes were written within one tick of the kernel's clock.
		if err := errors.Join(err, os.Chtimes(path+".new", time.Time{}, time.Unix(1, 0)), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	f := &file{path: path}
	if _, err := f.table(); err == nil {
		t.Error("a table without a file")
	}
	want := func(cluster string) {
		t.Helper()
		if got, err := f.table(); err != nil || got.Cluster != cluster {
			t.Errorf("%v, %v, want cluster %s", got, err, cluster)
		}
	}
	replace("one")
	want("one")
	want("one")
	// The third one may get the inode of the first.
	replace("two")
	replace("three")
	want("three")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("three")
	replace("four")
	want("four")
}

// A pending query gets an answer even if the server's life ends meanwhile.
func TestEndWaitsForAnswers(t *testing.T) {
	l := &life{path: filepath.Join(t.TempDir(), "life")}
	if err := os.WriteFile(l.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		l.over()
	}()
	l.inHand.Add(1)
	if err := os.Remove(l.path); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
		t.Error("it has ended with a query in hand")
	case <-time.After(time.Second):
	}
	l.inHand.Add(-1)
	<-over
}

// The program is on a node's disk before the berthd that comes with it is started.
func TestDirectiveOfOlderDaemonIsUnderstood(t *testing.T) {
	for directive, want := range map[string][2]string{
		"names /run/table /run/life": {"/run/table", "/run/life"},
		"names /run/table":           {"/run/table", "/run/table"},
	} {
		table, until, err := files(caddy.NewTestController("dns", directive))
		if got := [2]string{table, until}; err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", directive, got, err, want)
		}
	}
	if table, until, err := files(caddy.NewTestController("dns", "names")); err == nil {
		t.Errorf("without a table: %q, %q", table, until)
	}
}
