package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestDesignOfManyNodes(t *testing.T) {
	var offers []Offer
	for i := range maxNodes {
		offers = append(offers, Offer{Host: fmt.Sprint("n", i)})
	}
	plans, err := Design(Spec{}, offers)
	if err != nil {
		t.Fatal(err)
	}
	for i, plan := range plans {
		if plan.Index != i || plan.Head() != (i == 0) || len(plan.Members) != maxNodes {
			t.Fatalf("node %d: index %d of %d", i, plan.Index, len(plan.Members))
		}
		if self := plan.Members[i]; self.Address != plan.Addresses.Node || !slices.Contains(self.Prefixes, plan.Addresses.NodePods) || self.Name != plan.Node.Name {
			t.Errorf("node %d is member %+v", i, self)
		}
		if plan.Addresses.APIServer != plans[0].Addresses.Node {
			t.Errorf("node %d: the API server is at %s", i, plan.Addresses.APIServer)
		}
		for _, other := range plan.Members[:i] {
			if slices.ContainsFunc(other.Prefixes, plan.Addresses.NodePods.Overlaps) || other.Address == plan.Addresses.Node {
				t.Errorf("nodes %s and %s share addresses", other.Name, plan.Node.Name)
			}
		}
	}
	if _, err := Design(Spec{}, append(offers, Offer{})); err == nil {
		t.Error("one more node has no pod range, but is taken")
	}
}

func TestUnlikeOwnersAreReported(t *testing.T) {
	offers := []Offer{{Host: "n1", SubIDs: "a"}, {Host: "n2", SubIDs: "a"}, {Host: "n3"}}
	if said := UnlikeOwners(Spec{}, offers); said != "" {
		t.Errorf("%q without shared volumes", said)
	}
	if said := UnlikeOwners(Spec{SharedVolumes: "/data"}, offers); !strings.HasPrefix(said, "n3:") {
		t.Errorf("%q, want what is to be known of n3", said)
	}
}

func TestThreeNodesShareControlPlane(t *testing.T) {
	offers := make([]Offer, 4)
	for i := range offers {
		offers[i].Node.Name = fmt.Sprintf("n%d", i+1)
	}
	plans, err := Design(Spec{HighlyAvailable: true}, offers)
	if err != nil {
		t.Fatal(err)
	}
	for i, plan := range plans {
		if plan.Control() != (i < 3) || !plan.Replicated() || len(plan.Replicas()) != 3 {
			t.Errorf("node %d: control plane %v, one of %d", i, plan.Control(), len(plan.Replicas()))
		}
		if got, want := plan.Addresses.APIServerURL(), "https://127.0.0.1:6444"; got != want {
			t.Errorf("node %d reaches the API at %s, want %s", i, got, want)
		}
	}
	if _, err := Design(Spec{HighlyAvailable: true}, offers[:2]); !errors.Is(err, ErrTooFewNodes) {
		t.Errorf("with two nodes: %v", err)
	}
	plans, err = Design(Spec{}, offers)
	if err != nil {
		t.Fatal(err)
	}
	for i, plan := range plans {
		if plan.Control() != (i == 0) || plan.Replicated() || plan.Addresses.APIBalancer.IsValid() {
			t.Errorf("node %d of a run without --ha has a part of several control planes", i)
		}
	}
}
