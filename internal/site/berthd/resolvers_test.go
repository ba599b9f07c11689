package berthd

import (
	"net/netip"
	"os"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

func TestTasksUsePodNameServer(t *testing.T) {
	r := &resolvers{config: siteconf.Default(), dir: t.TempDir(), address: netip.MustParseAddr("10.128.0.1")}
	r.config.Cluster, r.config.DNS.Search = "site", []string{"example.org"}
	a := siteconf.Allocation{Job: 7, UID: 1000, User: "alice", Name: "shop"}
	if err := r.write(a); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.file("7"))
	if want := "nameserver 10.128.0.1\nsearch shop.alice.site alice.site example.org\noptions ndots:2\n"; err != nil || string(text) != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
	r.config.DNS.Program, r.dir = "", "/nowhere"
	if err := r.write(a); err != nil {
		t.Errorf("without names: %v", err)
	}
}

func TestLastSearchLineCounts(t *testing.T) {
	for text, want := range map[string]int{"": 0, "search a b\n": 2, "search a b\nnameserver 10.0.0.1\ndomain c\n": 1, "search\n": 0} {
		if found := searchOf(text); len(found) != want {
			t.Errorf("%q: %v, want %d domains", text, found, want)
		}
	}
}
