package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/savedstate"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
)

// continuity holds the part of the saved state that is not an object. Nodes of other jobs need it
// to return to the next head with their pods.
type continuity struct {
	// Cluster and Job identify the job of the cluster. Nodes look for no other.
	Cluster, Job string
	// Trust and Network are the keys that the nodes have, Blocks and FirstSeat the addresses.
	Trust     identity.Trust
	Network   []byte
	Blocks    cluster.Blocks
	FirstSeat cluster.Member
	// Taken holds the nodes. It is empty if none may return.
	Taken []members.Seat
}

// splitContinuity returns the records of objects, and the continuity if it is among them.
func splitContinuity(records []savedstate.Record) ([]savedstate.Record, *continuity, error) {
	i := slices.IndexFunc(records, func(r savedstate.Record) bool { return r.Key == savedstate.ClusterKey })
	if i < 0 {
		return records, nil, nil
	}
	var c continuity
	if err := json.Unmarshal(records[i].Value, &c); err != nil {
		return nil, nil, fmt.Errorf("read which nodes of other jobs the cluster had: %w", err)
	}
	return slices.Delete(slices.Clone(records), i, i+1), &c, nil
}

// record returns c as a record of the saved state.
func (c *continuity) record() (savedstate.Record, error) {
	value, err := json.Marshal(c)
	return savedstate.Record{Key: savedstate.ClusterKey, Value: value}, err
}

// firstSeat returns the first place for a node of another job. The others follow from it.
func firstSeat(plan cluster.Plan) cluster.Member { return plan.Places()[len(plan.Members)] }

// canReturn reports whether the nodes of c can be nodes of this start of the cluster, which has
// the plan.
func (c *continuity) canReturn(plan cluster.Plan, blocks cluster.Blocks) error {
	switch {
	case blocks != c.Blocks:
		return fmt.Errorf("the addresses %s are in use on the hosts of this cluster", c.Blocks.IPv4)
	case !reflect.DeepEqual(firstSeat(plan), c.FirstSeat):
		return errors.New("the cluster has another number of nodes, or of pods on a node")
	}
	return nil
}
