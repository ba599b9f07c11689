package launch

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/kube/savedstate"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
)

func TestContinuityIsSavedAndRead(t *testing.T) {
	offers := []cluster.Offer{{Host: "n1", RunID: "job-12-0"}}
	spec := cluster.Spec{Seats: 2, NodesPerHost: 1}
	plans, err := cluster.Design(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := cluster.BlocksOf(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := identity.Make(plans, "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	saved := &continuity{
		Cluster: "bed", Job: "12", Trust: keys.Trust, Network: []byte{1, 2}, Blocks: blocks, FirstSeat: firstSeat(plans[0]),
		Taken: []members.Seat{{Index: 1, Name: "N2-57", Node: "n2-57", RunID: "job-57-0"}},
	}
	record, err := saved.record()
	if err != nil {
		t.Fatal(err)
	}
	object := savedstate.Record{Key: "pods/default/a"}
	records, read, err := splitContinuity([]savedstate.Record{record, object})
	if err != nil || len(records) != 1 || records[0].Key != object.Key || !reflect.DeepEqual(read, saved) {
		t.Fatalf("read %+v and %v (%v), saved %+v", read, records, err, saved)
	}
	if _, none, err := splitContinuity(records); none != nil || err != nil {
		t.Errorf("there is %+v (%v)", none, err)
	}

	// The next start of the same job takes it up, and its nodes trust the same keys.
	s := &stateSaver{continued: read}
	if s.previous(rendezvous.Step{Cluster: "bed", Job: "12", Step: 3, Attempt: 1}) == nil {
		t.Error("the next start of the job does not continue")
	}
	for _, other := range []rendezvous.Step{{Cluster: "bed", Job: "13"}, {Cluster: "other", Job: "12"}} {
		if s.previous(other) != nil {
			t.Errorf("%s continues job 12", other)
		}
	}
	if (*stateSaver)(nil).previous(rendezvous.Step{}) != nil {
		t.Error("a run without saved state continues")
	}
	next, err := identity.Make(plans, "test", &read.Trust)
	if err != nil || !reflect.DeepEqual(next.Trust, keys.Trust) {
		t.Errorf("the next start has other keys (%v)", err)
	}
	if err := read.canReturn(plans[0], blocks); err != nil {
		t.Error(err)
	}
	for words, change := range map[string]func(*cluster.Plan, *cluster.Blocks){
		"are in use on the hosts":      func(_ *cluster.Plan, b *cluster.Blocks) { b.IPv4 = netip.MustParsePrefix("10.0.0.0/14") },
		"another number of nodes, or ": func(p *cluster.Plan, _ *cluster.Blocks) { p.Members = append(p.Members, p.Members...) },
	} {
		plan, otherBlocks := plans[0], blocks
		change(&plan, &otherBlocks)
		if err := read.canReturn(plan, otherBlocks); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want %q", err, words)
		}
	}
}
