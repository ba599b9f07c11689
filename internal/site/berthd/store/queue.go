package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// queue orders the writers that have lost a race for addresses, so that each waits for the
// one before it. Without a queue, 400 nodes that allocate at once would each read all
// allocations again after every write. It is only an optimization: the guard key decides
// which write succeeds, and a writer without competition never queues.
type queue struct {
	session *concurrency.Session
}

const (
	// queueLease is the longest delay, in seconds, that a dead writer causes for the others.
	queueLease = 3
	// LeaveLimit bounds the time, in seconds, for leaving the queue. A step waits that much
	// longer. An etcd that is cut off must leave enough time to report the error to the step.
	LeaveLimit = 1
)

// join returns when the caller is first in the queue, or at once if it is already. If etcd
// cannot queue the caller, join returns too; the next request to etcd returns the reason.
func (q *queue) join(ctx context.Context, client *clientv3.Client) {
	if q.session != nil {
		return
	}
	lease, err := client.Grant(ctx, queueLease)
	if err != nil {
		return
	}
	// A mutex that is not acquired removes its key with its client's context, which never ends
	// while etcd is cut off. This context ends with the wait. The lease removes the key as well.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bounded := clientv3.NewCtxClient(ctx)
	bounded.KV, bounded.Lease, bounded.Watcher = client.KV, client.Lease, client.Watcher
	// The lease is revoked even after ctx has ended. As the session gets an existing lease,
	// WithTTL only bounds how long Close waits.
	q.session, err = concurrency.NewSession(bounded, concurrency.WithLease(lease.ID), concurrency.WithTTL(LeaveLimit), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		q.session = nil
		return
	}
	if err := concurrency.NewMutex(q.session, queueKey).Lock(ctx); err != nil {
		q.leave()
	}
}

// leave lets the next writer continue. Its key is removed with the lease, which expires if
// etcd does not answer.
func (q *queue) leave() {
	if q.session != nil {
		_ = q.session.Close()
		q.session = nil
	}
}
