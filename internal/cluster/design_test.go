package cluster

import (
	"fmt"
	"strings"
	"testing"
)

func TestDesignOfManyNodes(t *testing.T) {
	var offers []Offer
	for i := range MaxNodes {
		offers = append(offers, Offer{Host: fmt.Sprint("n", i), Node: Node{Name: fmt.Sprint("n", i)}})
	}
	plans, err := Design(Spec{}, offers)
	if err != nil {
		t.Fatal(err)
	}
	for i, plan := range plans {
		if plan.Index != i || plan.Head() != (i == 0) || len(plan.Members) != MaxNodes {
			t.Fatalf("node %d: index %d of %d", i, plan.Index, len(plan.Members))
		}
		if self := plan.Members[i]; self.Address != plan.Addresses.Node || self.Pods != plan.Addresses.NodePods || self.Name != plan.Node.Name {
			t.Errorf("node %d is member %+v", i, self)
		}
		if plan.Addresses.APIServer != plans[0].Addresses.Node {
			t.Errorf("node %d: the API server is at %s", i, plan.Addresses.APIServer)
		}
		for _, other := range plan.Members[:i] {
			if other.Pods.Overlaps(plan.Addresses.NodePods) || other.Address == plan.Addresses.Node {
				t.Errorf("nodes %s and %s share addresses", other.Name, plan.Node.Name)
			}
		}
	}
	if _, err := Design(Spec{}, append(offers, Offer{})); err == nil {
		t.Error("one more node has no pod range, but is taken")
	}
}

func TestNodesNeedNamesOfTheirOwn(t *testing.T) {
	_, err := Design(Spec{}, []Offer{
		{Host: "GPU_1", Node: Node{Name: NodeName("GPU_1")}},
		{Host: "gpu-1", Node: Node{Name: NodeName("gpu-1")}},
	})
	if err == nil || !strings.Contains(err.Error(), "GPU_1") {
		t.Errorf("two nodes of one name: %v", err)
	}
}
