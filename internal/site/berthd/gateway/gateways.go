// Package gateway chooses the gateways through which the pods of a node reach the outside, and
// announces this host if it is one. Routes and translation of addresses do not belong here; they
// are in internal/site/vxlan.
//
// Read announce.go first, which makes this host a gateway. gateways.go chooses one for each pod,
// and reach.go pings them.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/icmp"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// Gateways chooses the gateway through which each pod of this node reaches the outside.
type Gateways struct {
	node    string
	host    netip.Addr
	config  siteconf.Gateways
	store   *store.Store
	log     *slog.Logger
	changed func()
	// again ends the watch; a new one begins by listing all gateways.
	again chan struct{}

	mu sync.Mutex
	// living holds the gateways with a lease in etcd, and known all that this daemon has seen,
	// by name. chosen holds each pod's gateway, by the pod's address.
	living, known map[string]netip.Addr
	chosen        map[netip.Addr]netip.Addr
	// away holds the gateways that this node does not reach.
	away map[netip.Addr]bool
}

// New returns an empty set of gateways. node is Slurm's name of this node, and host
// its address. changed is called when pods may need another gateway.
func New(node string, host netip.Addr, config siteconf.Gateways, store *store.Store, log *slog.Logger, changed func()) *Gateways {
	return &Gateways{
		node: node, host: host, config: config, store: store, log: log, changed: changed,
		again: make(chan struct{}, 1), living: map[string]netip.Addr{},
	}
}

// Adopt takes over the choices of the previous daemon, which it reads from the kernel.
func (g *Gateways) Adopt(kernel *vxlan.Kernel, hosts netip.Prefix) error {
	chosen, err := kernel.Chosen(g.host, hosts)
	g.chosen = chosen
	return err
}

// Assign gives each pod a gateway. A pod keeps its gateway while that is alive, even when
// others return, because a translated connection cannot move. A pod also keeps it when no
// gateway is alive: etcd may have lost all of them at once, and no gateway would be no better.
func (g *Gateways) Assign(pods []netip.Addr) map[netip.Addr]netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	former := g.chosen
	g.chosen = map[netip.Addr]netip.Addr{}
	users := map[netip.Addr]int{}
	living := g.reached()
	for _, gateway := range living {
		users[gateway] = 0
	}
	var without []netip.Addr
	for _, pod := range pods {
		gateway := former[pod]
		if _, lives := users[gateway]; !lives && (len(living) > 0 || !gateway.IsValid()) {
			without = append(without, pod)
			continue
		}
		g.chosen[pod] = gateway
		users[gateway]++
	}
	if len(living) == 0 {
		return maps.Clone(g.chosen)
	}
	slices.SortFunc(without, netip.Addr.Compare)
	for _, pod := range without {
		// Take the gateway with the fewest pods of this node. Nodes with one pod each would
		// all choose the same gateway, so the pod's address decides between equal ones.
		gateway := slices.MinFunc(living, func(a, b netip.Addr) int {
			return cmp.Or(cmp.Compare(users[a], users[b]), cmp.Compare(weight(pod, a), weight(pod, b)), a.Compare(b))
		})
		g.chosen[pod] = gateway
		users[gateway]++
	}
	return maps.Clone(g.chosen)
}

// reached returns the gateways that are alive and reachable from this node. If none is
// reachable, it returns all that are alive. The caller holds the mutex.
func (g *Gateways) reached() []netip.Addr {
	living := slices.Collect(maps.Values(g.living))
	reached := slices.DeleteFunc(slices.Clone(living), func(gateway netip.Addr) bool { return g.away[gateway] })
	if len(reached) == 0 {
		return living
	}
	return reached
}

// asked returns the other hosts whose reachability matters: gateways that are alive, if pods
// of this node use gateways and there is a choice. own reports whether this host is a live gateway.
func (g *Gateways) asked(host netip.Addr) (others []netip.Addr, own bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	living := slices.Collect(maps.Values(g.living))
	own = slices.Contains(living, host)
	if len(g.chosen) == 0 || len(living) < 2 {
		return nil, own
	}
	return slices.DeleteFunc(living, func(gateway netip.Addr) bool { return gateway == host }), own
}

// setAway sets the unreachable gateways and reports whether they have changed.
func (g *Gateways) setAway(away map[netip.Addr]bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed := !maps.Equal(g.away, away)
	g.away = away
	return changed
}

// weight returns a hash that makes pods with the same choice prefer different gateways.
func weight(pod, gateway netip.Addr) uint32 {
	h := fnv.New32a()
	h.Write(pod.AsSlice())
	h.Write(gateway.AsSlice())
	return h.Sum32()
}

// Of returns the gateway of a pod, or the zero address.
func (g *Gateways) Of(pod netip.Addr) netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.chosen[pod]
}

// All returns the site's gateways, alive or not, and the gateways that pods use. A gateway
// without its daemon still has its tunnel, so programs on that host keep their connections
// to pods.
func (g *Gateways) All() []netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.AppendSeq(slices.Collect(maps.Values(g.known)), maps.Values(g.chosen))
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() })
}

// set replaces the gateways that are alive and adds to the known ones. registered has
// all addresses that gateways have ever registered; the address of a live one is newer.
// Known gateways are never removed: in an etcd that lost its data, only running daemons
// register again.
func (g *Gateways) set(living, registered map[string]netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil {
		g.known = map[string]netip.Addr{}
	}
	g.living = living
	maps.Copy(g.known, registered)
	maps.Copy(g.known, living)
}

// Here reports whether this node is a gateway by the configuration.
func (g *Gateways) Here() bool { return slices.Contains(g.config.On, g.node) }

// Relist makes the watch list all gateways again.
func (g *Gateways) Relist() {
	select {
	case g.again <- struct{}{}:
	default:
	}
}

// Follow keeps track of the living gateways and their addresses until the context ends.
// It reads all nodes when a watch begins, because etcd limits the number of keys that one
// request can name. For 104 nodes this takes 0.3 ms instead of 0.2.
func (g *Gateways) Follow(ctx context.Context) error {
	return g.store.Persist(ctx, g.log, "follow gateways", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		limited, done := store.Limited(ctx)
		defer done()
		got, err := g.store.Client().Txn(limited).Then(clientv3.OpGet(store.GatewaysKey, clientv3.WithPrefix()), clientv3.OpGet(store.NodesKey, clientv3.WithPrefix())).Commit()
		if err != nil {
			return fmt.Errorf("ask etcd for gateways: %w", errors.Join(err, context.Cause(limited)))
		}
		living, registered := map[string]netip.Addr{}, map[string]netip.Addr{}
		for i, into := range []map[string]netip.Addr{living, registered} {
			for _, kv := range got.Responses[i].GetResponseRange().Kvs {
				g.parse(into, string(kv.Key), string(kv.Value))
			}
		}
		g.change(living, registered)
		go func() {
			select {
			case <-g.again:
				cancel()
			case <-ctx.Done():
			}
		}()
		for events := range g.store.Client().Watch(clientv3.WithRequireLeader(ctx), store.GatewaysKey, clientv3.WithPrefix(), clientv3.WithRev(got.Header.Revision+1)) {
			if err := events.Err(); err != nil {
				return fmt.Errorf("watch gateways in etcd: %w", err)
			}
			living = maps.Clone(living)
			for _, event := range events.Events {
				if event.Type == clientv3.EventTypePut {
					g.parse(living, string(event.Kv.Key), string(event.Kv.Value))
				} else {
					delete(living, path.Base(string(event.Kv.Key)))
				}
			}
			g.change(living, nil)
		}
		return errors.New("watch gateways in etcd: the connection is lost")
	})
}

// parse adds an entry of etcd to a map, unless the host is not one of the configured gateways.
func (g *Gateways) parse(into map[string]netip.Addr, key, value string) {
	name := path.Base(key)
	address, err := netip.ParseAddr(value)
	if err != nil || !slices.Contains(g.config.On, name) {
		return
	}
	into[name] = address
}

// change replaces the gateways as set does, and calls changed.
func (g *Gateways) change(living, registered map[string]netip.Addr) {
	g.set(living, registered)
	g.log.Info("gateways", "living", slices.Sorted(maps.Keys(living)))
	g.changed()
}

// WatchReach pings gateways while pods here use them and there is a choice.
func (g *Gateways) WatchReach(ctx context.Context) error {
	return g.store.Persist(ctx, g.log, "ask gateways whether they are reached", func(ctx context.Context) error {
		conn, err := icmp.ListenPacket("ip4:icmp", g.host.String())
		if err != nil {
			return fmt.Errorf("listen for answers: %w", err)
		}
		defer conn.Close()
		var r reach
		ticker := time.NewTicker(reachPeriod)
		defer ticker.Stop()
		for round := uint32(0); ; round++ {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			asked, own := g.asked(g.host)
			if len(asked) == 0 {
				r.missed = nil
			} else if err := ask(conn, asked, round); err != nil {
				return err
			}
			answered, err := answers(conn, asked, round)
			if err != nil {
				return err
			}
			if away := r.count(asked, answered, own); g.setAway(away) {
				g.log.Warn("gateways that this node does not reach", "gateways", slices.Collect(maps.Keys(away)))
				g.changed()
			}
		}
	})
}
