package peers

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
)

// nobody is the answer if no node has a blob. The asker then downloads it from
// the registry.
const nobody = -1

// directory records, for each digest that this node owns, the nodes that have requested the
// blob. Such a node has the blob, is receiving it, or will report that it lacks it.
type directory struct {
	mu     sync.Mutex
	askers map[digest.Digest][]int
}

// question is a node's request to the owner of a digest.
type question struct {
	digest digest.Digest
	// node is the asker. It has tried the nodes in without, and they failed.
	node    int
	without []int
	// again is set if the asker has received a part of the blob.
	again bool
}

// giver returns the node that sends the blob to the asker. It is always an earlier
// asker, so that no node waits for itself. An asker keeps its place until it
// starts again. The nodes form a binary tree in the order of their requests, so
// that no node sends to more than two others.
func (d *directory) giver(q question) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	askers := d.askers[q.digest]
	place := slices.Index(askers, q.node)
	if place >= 0 && !q.again {
		askers = slices.Delete(askers, place, place+1)
		place = -1
	}
	if place < 0 {
		place = len(askers)
		askers = append(askers, q.node)
	}
	if d.askers == nil {
		d.askers = map[digest.Digest][]int{}
	}
	d.askers[q.digest] = askers
	gives := func(at int) bool { return !slices.Contains(q.without, askers[at]) }
	for at := place; at > 0; {
		if at = (at - 1) / 2; gives(at) {
			return askers[at]
		}
	}
	for at := place - 1; at >= 0; at-- {
		if gives(at) {
			return askers[at]
		}
	}
	return nobody
}

// owners returns the nodes that record who has a digest: the owner first, and then its
// substitutes.
func owners(dgst digest.Digest, nodes int) []int {
	start, err := hex.DecodeString(dgst.Encoded()[:8])
	if err != nil {
		return nil // no digest
	}
	first := int(binary.BigEndian.Uint32(start) % uint32(nodes))
	all := make([]int, nodes)
	for i := range all {
		all[i] = (first + i) % nodes
	}
	return all
}
