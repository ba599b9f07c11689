package launch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/nodes"
	"berth.dev/berth/internal/rendezvous"
)

// helloLimit bounds the wait for the first word of a node that returns.
const helloLimit = 10 * time.Second

// attendance is how the head looks after the other nodes once they know what
// they are to be.
type attendance struct {
	*team
	keeper   *nodes.Keeper
	failFast bool
	giveUp   context.CancelCauseFunc
	// complete: all nodes were ready. One that dies earlier ends the run, which
	// has not begun.
	complete atomic.Bool
	ready    chan struct{}
}

// attend looks after the other nodes until ctx ends, and returns when all of
// them are ready.
func (t *team) attend(ctx context.Context, keeper *nodes.Keeper, failFast bool, giveUp context.CancelCauseFunc) error {
	a := &attendance{team: t, keeper: keeper, failFast: failFast, giveUp: giveUp, ready: make(chan struct{}, len(t.workers))}
	for _, w := range t.workers {
		go a.follow(ctx, w)
	}
	go a.readmit(ctx)
	for range t.workers {
		select {
		case <-a.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	a.complete.Store(true)
	return nil
}

// follow looks after one node: as long as it is connected, while it is lost, and
// when it is back.
func (a *attendance) follow(ctx context.Context, w *worker) {
	peer := w.peer
	for {
		err := a.hear(ctx, w, peer)
		var closed *rendezvous.ClosedError
		if ctx.Err() != nil || errors.As(err, &closed) && closed.Here {
			return
		}
		name := cluster.NodeName(w.name)
		begun := a.complete.Load()
		var late <-chan time.Time
		var lost *rendezvous.LostError
		switch {
		case a.failFast || !begun && !(errors.As(err, &lost) && lost.Silent()):
			a.giveUp(fail(ExitUnavailable, err))
			return
		case !begun:
			// Busy with its start, perhaps. No pod is there that waits for it.
			a.log.Warn(fmt.Sprintf("%v; waiting for it", err))
			late = time.After(a.wait)
		default:
			a.log.Warn(fmt.Sprintf("%v; the run goes on without the node, its pods start on others", err))
			a.tell(ctx, a.keeper.Lose(ctx, name, err.Error()))
		}
		select {
		case peer = <-w.returned:
		case <-late:
			a.giveUp(fail(ExitUnavailable, err))
			return
		case <-ctx.Done():
			return
		}
		if !a.keep(&w.peer, peer) {
			peer.Close("the run has ended")
			return
		}
		if err := peer.Send(ctx, welcome{Version: cluster.Version()}); err != nil {
			continue // lost again
		}
		if begun {
			a.tell(ctx, a.keeper.Regain(ctx, name))
		}
		a.log.Warn("node " + w.name + " is back")
	}
}

// hear listens to a node until its connection ends, and says how.
func (a *attendance) hear(ctx context.Context, w *worker, peer *rendezvous.Peer) error {
	for {
		var told news
		if err := peer.Receive(ctx, &told); err != nil {
			return err
		}
		if told.Ready && !w.ready {
			w.ready = true
			a.ready <- struct{}{}
		}
	}
}

// tell reports what the API server did not take. It may be about to end.
func (a *attendance) tell(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		a.log.Warn(err.Error())
	}
}

// readmit hears the nodes that come again after their connection was lost.
func (a *attendance) readmit(ctx context.Context) {
	for {
		peer, err := a.listener.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			if err := a.admit(ctx, peer); err != nil {
				a.log.Debug("node " + peer.Name() + " is not taken back: " + err.Error())
				peer.Close(err.Error())
			}
		}()
	}
}

// admit takes a node back that still is what it was. Another process on the
// same node knows nothing of the cluster.
func (a *attendance) admit(ctx context.Context, peer *rendezvous.Peer) error {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	var said hello
	if err := peer.Receive(ctx, &said); err != nil {
		return err
	}
	for _, w := range a.workers {
		if w.name != peer.Name() {
			continue
		}
		if !said.Returning || said.Offer.RunID != w.hello.Offer.RunID {
			return errors.New("the cluster has started without this process")
		}
		select {
		case w.returned <- peer:
			return nil
		default:
			return errors.New("this node has come back already")
		}
	}
	return errors.New("this node is not part of the cluster")
}
