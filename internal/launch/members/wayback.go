package members

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

const (
	// oneTry bounds an attempt to reach the next head. Meanwhile the job of the cluster may
	// have moved again.
	oneTry = 15 * time.Second
	// betweenTries is the pause between two attempts.
	betweenTries = time.Second
)

// headMoves is the reason of a head whose job starts again.
const headMoves = "the job of the cluster starts again"

// ErrClusterOver is wrapped by the error of PilotConfig.Again if the cluster does not come back.
var ErrClusterOver = errors.New("its cluster does not come back")

// wayBack leads a node of another job to the next head of its cluster.
type wayBack struct {
	wait  time.Duration
	again func(ctx context.Context) (PilotConfig, error)
	// step is the number of nodes of the cluster's own job.
	step int
	// expected is set if the cluster has saved state, so that there may be another head.
	expected bool
}

// headIsAway reports whether an error of the connection to the head leaves room for another
// head.
func headIsAway(err error) bool {
	closed, ok := errors.AsType[*rendezvous.ClosedError](err)
	return errors.As(err, new(*rendezvous.LostError)) || ok && !closed.Here && closed.Reason == headMoves
}

// returnToSeat waits for the next head of the cluster and takes the same seat there, as the
// process with this run ID. The pods of this node run on meanwhile. why is the end of the
// connection to the previous head; it is also the error if nobody expects this node.
func (m *Members) returnToSeat(ctx context.Context, runID string, why error) error {
	back := m.back
	if !back.expected || back.wait <= 0 {
		return why
	}
	for i := range back.step { // they have gone with the head
		m.applyChanges([]hostnet.Change{{Index: i}})
	}
	m.log.Warn(fmt.Sprintf("%v; the pods of this node go on, and it looks for the cluster for %s at most", why, back.wait))
	ctx, cancel := context.WithTimeoutCause(ctx, back.wait, fmt.Errorf("it did not come back within %s (--head-wait)", back.wait))
	defer cancel()
	said := hello{
		Version: cluster.Version(), Offer: cluster.Offer{RunID: runID}, Returning: true,
		Address: m.bound, Ports: m.sockets.Ports,
	}
	for {
		err := m.tryToReturn(ctx, said)
		switch {
		case err == nil:
			m.log.Info("this node is back in the cluster, which node " + m.head().Name() + " leads now")
			m.reportReady(ctx)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w; %w", why, context.Cause(ctx))
		case errors.Is(err, ErrClusterOver), rendezvous.IsRefusal(err), errors.As(err, new(*rendezvous.ClosedError)):
			return fmt.Errorf("%w; %w", why, err)
		}
		m.log.Debug("cannot return to the cluster: " + err.Error())
		select {
		case <-time.After(betweenTries):
		case <-ctx.Done():
		}
	}
}

// tryToReturn makes one attempt to return to the seat.
func (m *Members) tryToReturn(ctx context.Context, said hello) error {
	config, err := m.back.again(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, oneTry, fmt.Errorf("no head of step %s within %s", config.Join, oneTry))
	defer cancel()
	of := config.rendezvous()
	of.From = m.config.From
	peer, err := joinHead(ctx, of)
	if err != nil {
		return err
	}
	if !m.setHead(peer) {
		peer.Close("this node has left")
		return fmt.Errorf("this node has left: %w", ErrClusterOver)
	}
	var greeted greeting
	if err := peer.Receive(ctx, &greeted); err != nil {
		return err
	}
	if greeted.Version != cluster.Version() {
		peer.Drop()
		return fmt.Errorf("the cluster has berth %s now, and this node %s: %w", greeted.Version, cluster.Version(), ErrClusterOver)
	}
	answer, err := m.introduce(ctx, said)
	if err != nil {
		return err
	}
	m.applyChanges(answer.Changes)
	return nil
}
