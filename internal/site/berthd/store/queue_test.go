package store

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/berthd/etcd/etcdtest"
	"berth.dev/berth/internal/site/siteconf"
)

// inLine returns how many writers are in the queue.
func inLine(t *testing.T, s *Store) int64 {
	t.Helper()
	got, err := s.client.Get(t.Context(), queueKey, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return got.Count
}

// awaitLine waits until so many writers are in the queue.
func awaitLine(t *testing.T, s *Store, want int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); inLine(t, s) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d are in line, want %d", inLine(t, s), want)
		}
	}
}

// awaitEnd fails the test if something does not end.
func awaitEnd(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s does not end", what)
	}
}

// enter returns a queue that the caller has joined.
func enter(t *testing.T, s *Store) *queue {
	t.Helper()
	l := &queue{}
	l.join(t.Context(), s.client)
	if l.session == nil {
		t.Fatal("etcd lets nobody stand in line")
	}
	return l
}

func TestQueueWaitIsBounded(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	first := enter(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		new(queue).join(ctx, s.client)
	}()
	awaitLine(t, s, 2)
	// A job that is cancelled does not wait for its turn.
	cancel()
	awaitEnd(t, "the wait of a job that is cancelled", gone)
	awaitLine(t, s, 1)
	first.leave()
	third := enter(t, s)
	third.leave()
	third.leave()
	allocateAll(t, s, 20)
	awaitLine(t, s, 0)
}

// rivals has another writer allocate before each transaction, so that every
// transaction is too late.
type rivals struct {
	clientv3.KV
	put func()
}

func (r rivals) Txn(ctx context.Context) clientv3.Txn {
	r.put()
	return r.KV.Txn(ctx)
}

// watched signals the start of a watch.
type watched struct {
	clientv3.Watcher
	begun chan struct{}
}

func (w watched) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	close(w.begun)
	return w.Watcher.Watch(ctx, key, options...)
}

// A step in the queue learns that etcd no longer answers before the plugin gives up.
func TestIsolatedEtcdBlocksNobody(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	first := enter(t, s)
	defer first.leave()
	cable := newCable(t, s.client.Endpoints()[0])
	client := etcdtest.Dial(t, "http://"+cable.address)
	second := New(client, s.config)
	client.KV = rivals{client.KV, func() {
		if _, err := s.client.Put(t.Context(), guardKey, ""); err != nil {
			t.Error(err)
		}
	}}
	waits := make(chan struct{})
	client.Watcher = watched{client.Watcher, waits}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	var err error
	go func() {
		defer close(gone)
		_, err = second.Allocate(ctx, request(1, 1000))
	}()
	awaitEnd(t, "the way into the line", waits)
	cable.cut()
	cancel()
	awaitEnd(t, "an allocation whose time is over", gone)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the step reads: %v", err)
	}
	// The others go on when the lease has ended.
	awaitLine(t, s, 1)
}

// counted counts transactions.
type counted struct {
	clientv3.KV
	n *atomic.Int64
}

func (c counted) Txn(ctx context.Context) clientv3.Txn {
	c.n.Add(1)
	return c.KV.Txn(ctx)
}

// Concurrent allocations cost etcd a number of transactions in proportion to the
// number of nodes, not to its square.
func TestFortyNodesAllocateAtOnce(t *testing.T) {
	const count = 40
	all := agents(t, newStore(t, agentPods), count)
	var asked atomic.Int64
	for _, agent := range all {
		agent.client.KV = counted{agent.client.KV, &asked}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held := make([]siteconf.Allocation, count)
	together(t, count, func(i int) (err error) {
		held[i], err = all[i].Allocate(ctx, Request{Job: uint32(i + 1), UID: uint32(1000 + i), User: "somebody", Name: "x", Nodes: []string{agentName(i)}})
		return err
	})
	if t.Failed() {
		return
	}
	jobs := map[netip.Addr]uint32{}
	for _, a := range held {
		if other, twice := jobs[a.Pods[0].Address]; twice {
			t.Errorf("jobs %d and %d have %s", other, a.Job, a.Pods[0].Address)
		}
		jobs[a.Pods[0].Address] = a.Job
	}
	// Each node tries once without the queue, joins it, and has its turn. A node may
	// lose its turn to one that tries without the queue; each does so once. A try is
	// two transactions.
	if n, most := asked.Load(), int64(count*(2+1+2+2)); n > most {
		t.Errorf("%d transactions for %d nodes, want at most %d", n, count, most)
	}
	awaitLine(t, all[0], 0)
}

// cable is a connection to etcd that can be cut: data is then neither delivered nor
// refused.
type cable struct {
	address string
	isCut   atomic.Bool
}

func (c *cable) cut() { c.isCut.Store(true) }

func newCable(t *testing.T, endpoint string) *cable {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{address: listener.Addr().String()}
	var group sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		group.Wait()
	})
	group.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to.Host)
			if err != nil {
				near.Close()
				continue
			}
			// Each direction ends the other one, so all end with the client.
			group.Go(func() { c.pass(near, far) })
			group.Go(func() { c.pass(far, near) })
		}
	})
	return c
}

func (c *cable) pass(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if c.isCut.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
