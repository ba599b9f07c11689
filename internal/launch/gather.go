package launch

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/overlay"
	"berth.dev/berth/internal/rendezvous"
	"berth.dev/berth/internal/sandbox"
)

// turnAwayLimit is how long a head that has failed waits for nodes to tell.
const turnAwayLimit = 3 * time.Second

// gather waits for all other nodes and takes in what they bring. It returns
// the offers of all, of which the first, this node's own, only says how large a
// packet reaches the others.
func (t *team) gather(ctx context.Context, cpus int) ([]cluster.Offer, error) {
	ctx, cancel := t.waiting(ctx)
	defer cancel()
	others := t.config.Nodes[1:]
	if err := t.listener.Await(ctx, others); err != nil {
		return nil, fail(ExitUnavailable, err)
	}
	for range others {
		if err := t.accept(ctx); err != nil {
			return nil, fail(ExitUnavailable, err)
		}
	}
	slices.SortFunc(t.workers, func(a, b *worker) int {
		return cmp.Compare(slices.Index(others, a.name), slices.Index(others, b.name))
	})
	offers := []cluster.Offer{{}}
	var hosts []netip.Addr
	for _, w := range t.workers {
		offers = append(offers, w.hello.Offer)
		hosts = append(hosts, w.address())
	}
	var err error
	if t.sockets, err = t.data.open(cpus, hosts...); err != nil {
		return nil, fail(ExitUnavailable, err)
	}
	offers[0].MeshMTU, err = overlay.MTU(hosts)
	return offers, fail(ExitUnavailable, err)
}

// accept takes in one node.
func (t *team) accept(ctx context.Context) error {
	peer, err := t.listener.Accept(ctx)
	if err != nil {
		return err
	}
	w := &worker{name: peer.Name(), peer: peer, returned: make(chan *rendezvous.Peer, 1)}
	t.mu.Lock()
	t.workers = append(t.workers, w)
	t.mu.Unlock()
	if err := peer.Receive(ctx, &w.hello); err != nil {
		return err
	}
	if w.hello.Version != cluster.Version() {
		return fmt.Errorf("node %s has berth %s, this node %s: use the same one on all nodes", w.name, w.hello.Version, cluster.Version())
	}
	return nil
}

// turnAway tells the nodes that come that there will be no cluster; they would
// look for their head in vain otherwise. It waits a little for those that do
// not.
func (t *team) turnAway(why error) {
	if why == nil || !t.awaited() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), turnAwayLimit)
	defer cancel()
	if t.listener == nil {
		var err error
		if t.listener, err = rendezvous.Listen(ctx, t.config); err != nil {
			return
		}
	}
	var leaving sync.WaitGroup
	for range len(t.config.Nodes) - 1 - len(t.workers) {
		peer, err := t.listener.Accept(ctx)
		if err != nil {
			break
		}
		leaving.Go(func() { peer.Close(why.Error()) })
	}
	leaving.Wait()
	t.leave(why.Error())
}

// awaited tells whether the other nodes do not know yet what they are to be,
// and wait for this one's word.
func (t *team) awaited() bool { return t != nil && t.leads() && !t.told }

// address is where packets for the node's pods go.
func (w *worker) address() netip.Addr {
	if w.hello.Address.IsValid() {
		return w.hello.Address
	}
	return hostOf(w.peer.RemoteAddr())
}

// handOver makes the network between the nodes and tells every other node what
// it is to be.
func (t *team) handOver(ctx context.Context, plans []cluster.Plan, files []map[string]sandbox.File, archives []archive) error {
	t.told = true
	var source archiveSource
	if len(archives) > 0 {
		var err error
		if t.archives, err = serveArchives(archives, t.config.Ports); err != nil {
			return fail(ExitUnavailable, err)
		}
		source = t.archives.source
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	nodes := make([]overlay.Node, len(plans))
	for i, member := range plans[0].Members {
		nodes[i] = overlay.Node{
			Name:     member.Name,
			Prefixes: []netip.Prefix{member.Pods, netip.PrefixFrom(member.Address, member.Address.BitLen())},
		}
		if i > 0 {
			nodes[i] = t.workers[i-1].hello.Ports.at(t.workers[i-1].address(), nodes[i])
		}
	}
	t.mesh = mesh{Key: key, Carrier: t.carrier, Nodes: nodes}
	for i, w := range t.workers {
		own := t.data.address
		if !own.IsValid() {
			// Each reaches the head at the address that it has connected to.
			own = hostOf(w.peer.LocalAddr())
		}
		theirs := append([]overlay.Node(nil), nodes...)
		theirs[0] = t.sockets.ports.at(own, theirs[0])
		err := w.peer.Send(ctx, welcome{
			Version: cluster.Version(), Plan: plans[i+1], Files: files[i+1],
			Mesh:     mesh{Key: key, Carrier: t.carrier, Nodes: theirs, Self: i + 1},
			Archives: archives, Source: source,
		})
		if err != nil {
			return fail(ExitUnavailable, err)
		}
	}
	return nil
}
