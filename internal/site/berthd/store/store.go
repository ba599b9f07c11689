package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// Store keeps in etcd the state that all nodes share.
type Store struct {
	connection
	config siteconf.Config
	// subnets holds the pod subnets of the configuration, computed once because its
	// node lists are long.
	subnets map[string]netip.Prefix
	// lease is this node's lease in etcd, or 0 before etcd has granted one.
	lease atomic.Int64
}

// ErrTaken reports that an address or a network of a job now belongs to somebody
// else.
var ErrTaken = errors.New("given to somebody else")

// New returns a store that uses an existing connection to etcd.
func New(client *clientv3.Client, config siteconf.Config) *Store {
	return &Store{connection: connection{client: client}, config: config, subnets: config.Subnets()}
}

// Check returns an error if etcd does not answer, with the reason of a refused connection.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.list(ctx, NodesKey+"none/")
	return err
}

// Register records the address and port where the tunnels of a node end. It writes
// only what has changed, so it may be called often. It returns the revision of etcd.
func (s *Store) Register(ctx context.Context, node string, address netip.Addr) (int64, error) {
	value, port := address.String(), strconv.Itoa(int(s.config.Tunnel.Port))
	fail := func(err error) (int64, error) { return 0, fmt.Errorf("register node %s in etcd: %w", node, err) }
	// Hundreds of nodes do this every 'collect', and almost always nothing has
	// changed: use a single request.
	known, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(nodeKey(node)), "=", value),
		clientv3.Compare(clientv3.Value(tunnelKey(node)), "=", port), clientv3.Compare(clientv3.CreateRevision(bornKey), ">", 0)).Commit()
	if err != nil {
		return fail(err)
	}
	if known.Succeeded {
		return known.Header.Revision, nil
	}
	if err := s.begin(ctx); err != nil {
		return fail(err)
	}
	put, err := s.client.Txn(ctx).Then(clientv3.OpPut(nodeKey(node), value), clientv3.OpPut(tunnelKey(node), port)).Commit()
	if err != nil {
		return fail(err)
	}
	return put.Header.Revision, nil
}

// Nodes returns the address of each node that has registered.
func (s *Store) Nodes(ctx context.Context) (map[string]netip.Addr, error) {
	ctx, cancel := Limited(ctx)
	defer cancel()
	got, err := s.client.Get(ctx, NodesKey, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("ask etcd for nodes: %w", errors.Join(err, context.Cause(ctx)))
	}
	return addressesOf(got.Kvs)
}

// addressesOf parses the keys of nodes.
func addressesOf(kvs []*mvccpb.KeyValue) (map[string]netip.Addr, error) {
	nodes := map[string]netip.Addr{}
	for _, kv := range kvs {
		node := path.Base(string(kv.Key))
		address, err := netip.ParseAddr(string(kv.Value))
		if err != nil {
			return nil, fmt.Errorf("read address of node %s: %w", node, err)
		}
		nodes[node] = address
	}
	return nodes, nil
}

// TunnelPorts returns the tunnel port of each node that has registered one.
func (s *Store) TunnelPorts(ctx context.Context) (map[string]uint16, error) {
	ctx, cancel := Limited(ctx)
	defer cancel()
	got, err := s.client.Get(ctx, TunnelsKey, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("ask etcd for ports of tunnels: %w", errors.Join(err, context.Cause(ctx)))
	}
	ports := map[string]uint16{}
	for _, kv := range got.Kvs {
		port, err := strconv.ParseUint(string(kv.Value), 10, 16)
		if err != nil {
			return nil, fmt.Errorf("read the port of tunnels in %s: %w", kv.Key, err)
		}
		ports[path.Base(string(kv.Key))] = uint16(port)
	}
	return ports, nil
}

// begin marks an empty etcd as new for the duration of a lease. etcd measures that
// time itself, so it does not depend on the clock of a node, which may be changed.
func (s *Store) begin(ctx context.Context) error {
	known, err := s.client.Get(ctx, bornKey, clientv3.WithCountOnly())
	if err != nil || known.Count > 0 {
		return err
	}
	puts := []clientv3.Op{clientv3.OpPut(bornKey, strconv.FormatInt(time.Now().Unix(), 10))}
	var lease clientv3.LeaseID
	if seconds := int64(s.grace().Seconds()); seconds > 0 {
		granted, err := s.client.Grant(ctx, seconds)
		if err != nil {
			return err
		}
		lease = granted.ID
		puts = append(puts, clientv3.OpPut(youngKey, "", clientv3.WithLease(lease)))
	}
	done, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(bornKey), "=", 0)).Then(puts...).Commit()
	if err != nil || done.Succeeded || lease == clientv3.NoLease {
		return err
	}
	_, err = s.client.Revoke(ctx, lease)
	return err
}

// grace returns how long an etcd counts as new. Nodes poll the controller for its
// jobs, notice within one poll that etcd has forgotten their pods, and restore them.
func (s *Store) grace() time.Duration { return 3 * s.config.Collect }
