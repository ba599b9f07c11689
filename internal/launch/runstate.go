package launch

import (
	"context"
	"sync/atomic"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/kube/lease"
	"berth.dev/berth/internal/launch/members"
)

// run is one run, as this node sees it. Only the node that leads the run uses work.
type run struct {
	node
	start   steps
	work    userWorkload
	monitor *members.Monitor
	control *persistent.ControlSocket // of a persistent cluster
	// offers holds the offers of the nodes of the step. seatProver proves the cluster to nodes of
	// other jobs, and forgetSeatKey removes its key; nil where there is none.
	offers        []cluster.Offer
	seatProver    rendezvous.Prover
	forgetSeatKey func()
	// blocks holds the blocks of the cluster's addresses.
	blocks cluster.Blocks
	// moves is set if the job of the cluster starts again after this end.
	moves atomic.Bool
	// endPilotRole ends the role that submits pilots; nil without the role. pilotsHadTime is set if
	// the role had the time of the pods to end.
	endPilotRole  func(word string) <-chan struct{}
	pilotsHadTime bool
	// lease is set if another node may lead the run after this one. lostLease is set when
	// this node has lost the lease, so that another node may lead the run.
	lease     *lease.Lease
	lostLease atomic.Bool
	// endRenewal ends the renewal of the lease; nil before it begins.
	endRenewal context.CancelFunc
}
