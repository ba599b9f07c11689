package berthd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// line is where those wait who have lost a race for addresses, each for the one before
// it. Without it, of 400 nodes that allocate at once each would read all allocations
// again whenever another one has written. It keeps nobody from anything: what is
// written is decided by the guard, and who comes alone does not wait.
type line struct {
	session *concurrency.Session
}

const (
	// lineLease is how long somebody who died stands in the way of the others, in seconds.
	lineLease = 3
	// leaveLimit is how long etcd may take to hear that somebody leaves, in seconds. It
	// comes on top of what a step waits: an etcd that is cut off must not use up the
	// time in which the step is told so.
	leaveLimit = 1
)

// join returns when it is one's turn; who has it already keeps it. Where etcd does not
// let one stand in line, one goes on without: the next question says why.
func (l *line) join(ctx context.Context, client *clientv3.Client) {
	if l.session != nil {
		return
	}
	lease, err := client.Grant(ctx, lineLease)
	if err != nil {
		return
	}
	// A mutex that has waited in vain removes its key with the context of its client, which
	// for an etcd that is cut off ends never: this one ends with the wait. The lease removes
	// the key as well.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bounded := clientv3.NewCtxClient(ctx)
	bounded.KV, bounded.Lease, bounded.Watcher = client.KV, client.Lease, client.Watcher
	// The lease is to be given back, too, when the context has ended. What is called the
	// time to live is for a session that has a lease already only how long Close waits.
	l.session, err = concurrency.NewSession(bounded, concurrency.WithLease(lease.ID), concurrency.WithTTL(leaveLimit), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		l.session = nil
		return
	}
	if err := concurrency.NewMutex(l.session, lineKey).Lock(ctx); err != nil {
		l.leave()
	}
}

// leave lets the next one go. The key goes with the lease, which ends by itself where
// etcd does not answer.
func (l *line) leave() {
	if l.session != nil {
		_ = l.session.Close()
		l.session = nil
	}
}
