package peers

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestGiver(t *testing.T) {
	var d directory
	dgst := digest.FromString("layer")
	for _, c := range []struct {
		node    int
		without []int
		again   bool
		want    int
	}{
		{4, nil, false, nobody},
		{0, nil, false, 4},
		{2, nil, false, 4},
		{1, nil, false, 0},
		{3, nil, false, 0},
		// The first node has died: the first node to notice takes over, and the
		// others follow.
		{2, []int{4}, true, 0},
		{0, []int{4}, true, nobody},
		// A node that restarts comes after the others.
		{4, nil, false, 2},
		// A new node that knows of two dead nodes.
		{5, []int{2, 0}, false, 1},
	} {
		if got := d.giver(question{dgst, c.node, c.without, c.again}); got != c.want {
			t.Errorf("%+v: node %d", c, got)
		}
	}
	if got := d.giver(question{digest: digest.FromString("another"), node: 3}); got != nobody {
		t.Errorf("another digest: node %d", got)
	}
}

// TestNoCycle: whatever fails, nodes never wait for each other in a circle.
func TestNoCycle(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		var d directory
		const nodes = 8
		from := map[int]int{} // receiver to giver
		failed := map[int][]int{}
		for range 100 {
			node := random.IntN(nodes)
			again := false
			if giver, ok := from[node]; ok && random.IntN(3) > 0 {
				failed[node], again = append(failed[node], giver), true
			} else {
				// The node restarts, so the nodes that received from it have lost
				// it.
				failed[node] = nil
				for child, giver := range from {
					if giver == node {
						delete(from, child)
					}
				}
			}
			from[node] = d.giver(question{digest.FromString("x"), node, failed[node], again})
			for at, steps := node, 0; at != nobody; steps++ {
				if steps > nodes {
					t.Fatalf("seed %d: a circle: %v", seed, from)
				}
				next, ok := from[at]
				if !ok {
					break
				}
				at = next
			}
		}
	}
}

func TestOwners(t *testing.T) {
	first := map[int]int{}
	for i := range 400 {
		all := owners(digest.FromBytes([]byte{byte(i), byte(i >> 8)}), 4)
		if sorted := slices.Sorted(slices.Values(all)); !slices.Equal(sorted, []int{0, 1, 2, 3}) {
			t.Fatalf("not all nodes: %v", all)
		}
		first[all[0]]++
	}
	for node, n := range first {
		if n < 60 {
			t.Errorf("node %d owns %d of 400", node, n)
		}
	}
}
