package berthd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"berth.dev/berth/internal/site/siteconf"
)

// Store keeps in etcd the state that all nodes share.
type Store struct {
	client *clientv3.Client
	config siteconf.Config
	// subnets holds the pod subnets of the configuration, computed once because its
	// node lists are long.
	subnets map[string]netip.Prefix
	// lease is this node's lease in etcd, or 0 before etcd has granted one.
	lease atomic.Int64
	// refused holds the reason why the last connection was refused. It is nil after
	// another connection has been used.
	refused atomic.Pointer[error]
}

// etcdLimit bounds how long a request to etcd may take.
const etcdLimit = 5 * time.Second

// retry is the pause before another attempt.
const retry = 500 * time.Millisecond

// reconnect limits the pauses between attempts to reach etcd. By default gRPC's
// pauses grow to two minutes, and a node would fail jobs for that long after etcd is
// back.
var reconnect = backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

var errNoEtcd = errors.New("etcd does not answer")

// errTaken reports that an address or a network of a job now belongs to somebody
// else.
var errTaken = errors.New("given to somebody else")

// OpenStore connects to etcd, which does not have to answer yet.
func OpenStore(config siteconf.Config) (*Store, error) {
	info := transport.TLSInfo{CertFile: config.Etcd.Cert, KeyFile: config.Etcd.Key, TrustedCAFile: config.Etcd.CA}
	security, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read keys for etcd: %w", err)
	}
	s := &Store{config: config, subnets: config.Subnets()}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: config.Etcd.Endpoints, TLS: security,
		// Everything it would log is in the errors that it returns.
		Logger:            zap.NewNop(),
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: etcdLimit}),
			grpc.WithTransportCredentials(recordingCredentials{credentials.NewTLS(security), &s.refused}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return s, nil
}

// persist calls do until it succeeds or the context ends, and logs its errors.
func (s *Store) persist(ctx context.Context, log *slog.Logger, what string, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		log.Warn(what, "error", s.explain(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// explain adds the reason of the last refused connection to the error of a request.
func (s *Store) explain(err error) error {
	last := s.refused.Load()
	if err == nil || last == nil {
		return err
	}
	return fmt.Errorf("%w: no connection to etcd: %w: are the certificates valid, and the clocks of both hosts right?", err, *last)
}

// Close ends all watches.
func (s *Store) Close() error { return s.client.Close() }

func nodeKey(node string) string  { return nodesKey + node }
func userKey(owner string) string { return siteconf.Prefix + "users/" + owner }
func networkPrefix(owner string) string {
	return siteconf.Prefix + "networks/" + owner + "/"
}

// pods is the part between the owner and the ID in the keys of allocations.
const pods = "pods"

func podsKey(a siteconf.Allocation) string { return networkPrefix(a.Owner()) + pods + "/" + a.ID() }

// partsOf splits a key of this kind below networks/. It goes by the position between
// slashes, because a group may have any of these names.
func partsOf(key, kind string) ([]string, bool) {
	rest, found := strings.CutPrefix(key, networksKey)
	parts := strings.Split(rest, "/")
	return parts, found && len(parts) > 1 && parts[1] == kind
}

// isPods reports whether key holds an allocation. Another version of berthd may write
// other keys beside them, and they must not stop this one.
func isPods(key string) bool {
	parts, found := partsOf(key, pods)
	return found && len(parts) == 3
}

// besideOf parses a key that is kept beside an allocation. It returns the
// allocation's ID and revision, and the last part of the key.
func besideOf(key, kind string) (id string, after int64, end string, found bool) {
	parts, found := partsOf(key, kind)
	if !found || len(parts) != 5 {
		return "", 0, "", false
	}
	after, err := strconv.ParseInt(parts[3], 10, 64)
	return parts[2], after, parts[4], err == nil
}

func leftPrefix(a siteconf.Allocation) string { return siteconf.Prefix + "left/" + a.ID() + "/" }
func leftKey(a siteconf.Allocation, node string) string {
	return fmt.Sprintf("%s%d/%s", leftPrefix(a), a.After, node)
}

// at is the part after the owner in the keys of addresses that plugins assign.
const at = "at"

func atPrefix(a siteconf.Allocation) string {
	return networkPrefix(a.Owner()) + at + "/" + a.ID() + "/"
}

const (
	guardKey    = siteconf.Prefix + "guard"
	queueKey    = siteconf.Prefix + "line"
	bornKey     = siteconf.Prefix + "born"
	youngKey    = siteconf.Prefix + "young"
	networksKey = siteconf.Prefix + "networks/"
	usersKey    = siteconf.Prefix + "users/"
	nodesKey    = siteconf.Prefix + "nodes/"
	tunnelsKey  = siteconf.Prefix + "tunnels/"
	gatewaysKey = siteconf.Prefix + "gateways/"
)

// tunnelKey holds the port of a node's tunnels. It is separate from nodeKey because
// older versions of berthd read that value as an address.
func tunnelKey(node string) string { return tunnelsKey + node }

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

// TunnelPorts returns the tunnel port of each node that has registered one.
func (s *Store) TunnelPorts(ctx context.Context) (map[string]uint16, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	got, err := s.client.Get(ctx, tunnelsKey, clientv3.WithPrefix())
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

// Request describes the allocation that a job or a login session asks for.
type Request struct {
	Job, UID   uint32
	User, Name string
	// Group is the group whose members share a network with the user.
	Group string
	// Login is the host, if the request is for sessions and not for a job.
	Login string
	// Nodes lists the nodes of the job, in Slurm's order.
	Nodes []string
}

// Allocate assigns all addresses of a job in one step, or returns the addresses it
// already has. Allocations never overlap: each is written only if no other allocation
// was written since the taken addresses were read. An address released in between is
// just not used yet.
func (s *Store) Allocate(ctx context.Context, request Request) (siteconf.Allocation, error) {
	fail := func(err error) (siteconf.Allocation, error) {
		return siteconf.Allocation{}, fmt.Errorf("allocate addresses for %s: %w", request.empty(0).ID(), s.explain(err))
	}
	key := podsKey(request.empty(0))
	var queue queue
	defer queue.leave()
	for {
		known, err := s.read(ctx)
		if err != nil {
			return fail(err)
		}
		former, there := known.jobs[key]
		if there && sameNodes(former, request.Nodes) {
			return former, nil
		}
		if err := s.settle(ctx, known); err != nil {
			return fail(err)
		}
		a := request.empty(known.guard)
		a.VNI = known.network(a.Owner(), s.config.Tunnel.FirstVNI)
		if a.Pods, err = s.choose(known, request.Nodes); err != nil {
			return fail(err)
		}
		put, err := s.put(a)
		if err != nil {
			return fail(err)
		}
		done, err := s.write(ctx, known, put, clientv3.OpDelete(leftPrefix(a), clientv3.WithPrefix()), clientv3.OpDelete(atPrefix(a), clientv3.WithPrefix()),
			clientv3.OpDelete(namesPrefix(a), clientv3.WithPrefix()), clientv3.OpPut(userKey(a.Owner()), strconv.FormatUint(uint64(a.VNI), 10)))
		if err != nil {
			return fail(err)
		}
		if done {
			return a, nil
		}
		queue.join(ctx, s.client)
	}
}

// empty returns the allocation without pods.
func (r Request) empty(after int64) siteconf.Allocation {
	return siteconf.Allocation{Job: r.Job, Login: r.Login, UID: r.UID, User: r.User, Group: r.Group, Name: r.Name, After: after}
}

// Refuse records why a job gets no addresses, for its other nodes, which are waiting.
func (s *Store) Refuse(ctx context.Context, request Request, why error) error {
	a := request.empty(0)
	a.Problem = why.Error()
	value, err := json.Marshal(a)
	if err != nil {
		return err
	}
	key := podsKey(a)
	if _, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, string(value))).Commit(); err != nil {
		return fmt.Errorf("tell the nodes of %s that it gets no addresses: %w", a.ID(), err)
	}
	return nil
}

// settle waits until etcd no longer counts as new. An empty etcd must not assign
// addresses again before nodes have reported the ones in use.
func (s *Store) settle(ctx context.Context, k knowledge) error {
	if k.young == clientv3.NoLease {
		return nil
	}
	lease, err := s.client.TimeToLive(ctx, k.young)
	if err != nil {
		return err
	}
	fail := func() error {
		wait := time.Duration(max(lease.TTL, 1)) * time.Second
		return fmt.Errorf("etcd is new: nodes first register the addresses in use: try again in %s", wait)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for events := range s.client.Watch(clientv3.WithRequireLeader(ctx), youngKey, clientv3.WithRev(k.revision+1), clientv3.WithFilterPut()) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("%w: %w", fail(), err)
		}
		if len(events.Events) > 0 {
			return nil
		}
	}
	return fail()
}

// knowledge is the state that an allocation is decided from.
type knowledge struct {
	// guard is the revision of the latest allocation.
	guard int64
	// revision is etcd's revision when the state was read.
	revision int64
	// young is the lease during which etcd counts as new, or NoLease.
	young clientv3.LeaseID
	// jobs and users are keyed by etcd key, nodes by name.
	jobs  map[string]siteconf.Allocation
	users map[string]uint32
	nodes map[string]netip.Addr
}

func (s *Store) read(ctx context.Context) (knowledge, error) {
	k := knowledge{jobs: map[string]siteconf.Allocation{}, users: map[string]uint32{}, nodes: map[string]netip.Addr{}}
	seen, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(guardKey), clientv3.OpGet(networksKey, clientv3.WithPrefix()),
		clientv3.OpGet(usersKey, clientv3.WithPrefix()), clientv3.OpGet(nodesKey, clientv3.WithPrefix()), clientv3.OpGet(youngKey),
	).Commit()
	if err != nil {
		return k, err
	}
	k.revision = seen.Header.Revision
	values := func(i int) []*mvccpb.KeyValue { return seen.Responses[i].GetResponseRange().Kvs }
	for _, kv := range values(0) {
		k.guard = kv.ModRevision
	}
	for _, kv := range values(1) {
		if !isPods(string(kv.Key)) {
			continue
		}
		if k.jobs[string(kv.Key)], err = decode(kv.Value); err != nil {
			return k, err
		}
	}
	for _, kv := range values(2) {
		vni, err := strconv.ParseUint(string(kv.Value), 10, 24)
		if err != nil {
			return k, fmt.Errorf("read network of user %s: %w", path.Base(string(kv.Key)), err)
		}
		k.users[string(kv.Key)] = uint32(vni)
	}
	for _, kv := range values(4) {
		k.young = clientv3.LeaseID(kv.Lease)
	}
	for _, kv := range values(3) {
		node := path.Base(string(kv.Key))
		if k.nodes[node], err = netip.ParseAddr(string(kv.Value)); err != nil {
			return k, fmt.Errorf("read address of node %s: %w", node, err)
		}
	}
	return k, nil
}

// write commits only if nobody has allocated since k was read.
func (s *Store) write(ctx context.Context, k knowledge, ops ...clientv3.Op) (bool, error) {
	unchanged := clientv3.Compare(clientv3.ModRevision(guardKey), "=", k.guard)
	written, err := s.client.Txn(ctx).If(unchanged).Then(append(ops, clientv3.OpPut(guardKey, ""))...).Commit()
	if err != nil {
		return false, err
	}
	return written.Succeeded, nil
}

func (k knowledge) taken() map[netip.Addr]bool {
	taken := map[netip.Addr]bool{}
	for _, a := range k.jobs {
		for _, pod := range a.Pods {
			if pod.Address.IsValid() {
				taken[pod.Address] = true
			}
		}
	}
	return taken
}

// network returns the network identifier of an owner, or the next unused one.
func (k knowledge) network(owner string, first uint32) uint32 {
	if vni, known := k.users[userKey(owner)]; known {
		return vni
	}
	next := first
	for _, vni := range k.users {
		next = max(next, vni+1)
	}
	return next
}

// choose assigns an address to the pod on each node, unless CNI plugins on the nodes
// do.
func (s *Store) choose(k knowledge, nodes []string) ([]siteconf.Pod, error) {
	if s.config.ByRoutes() {
		return chooseRouted(s.subnets, s.config.Gateway(), k.taken(), k.nodes, nodes)
	}
	if !s.config.ByCNI() {
		return choose(s.config.Pods, k.taken(), k.nodes, nodes)
	}
	var pods []siteconf.Pod
	for _, node := range nodes {
		via, known := k.nodes[node]
		if !known {
			return nil, errUnregistered(node)
		}
		pods = append(pods, siteconf.Pod{Node: node, Via: via})
	}
	return pods, nil
}

func errUnregistered(node string) error {
	return fmt.Errorf("node %s is not registered: start berthd there", node)
}

// choose takes the lowest free addresses.
func choose(pods netip.Prefix, taken map[netip.Addr]bool, via map[string]netip.Addr, nodes []string) ([]siteconf.Pod, error) {
	var chosen []siteconf.Pod
	pods = pods.Masked()
	// Each node itself uses the first address.
	address := pods.Addr().Next().Next()
	for _, node := range nodes {
		end, known := via[node]
		if !known {
			return nil, errUnregistered(node)
		}
		for taken[address] {
			address = address.Next()
		}
		// The last address is the broadcast address.
		if !pods.Contains(address.Next()) {
			return nil, fmt.Errorf("all addresses of %s are taken, %d are needed: wait for jobs to end, or give 'pods' a larger range", pods, len(nodes))
		}
		chosen = append(chosen, siteconf.Pod{Node: node, Address: address, Via: end})
		address = address.Next()
	}
	return chosen, nil
}

func sameNodes(a siteconf.Allocation, nodes []string) bool {
	if len(a.Pods) != len(nodes) {
		return false
	}
	for i, pod := range a.Pods {
		if pod.Node != nodes[i] {
			return false
		}
	}
	return true
}

func decode(value []byte) (siteconf.Allocation, error) {
	var a siteconf.Allocation
	if err := json.Unmarshal(value, &a); err != nil {
		return a, fmt.Errorf("read an allocation in etcd: %w", err)
	}
	return a, nil
}

// Restore writes an allocation that etcd has lost. It fails with errTaken if an
// address or the network identifier now belongs to somebody else.
func (s *Store) Restore(ctx context.Context, a siteconf.Allocation) error {
	fail := func(err error) error { return fmt.Errorf("restore addresses of %s: %w", a.ID(), err) }
	put, err := s.put(a)
	if err != nil {
		return fail(err)
	}
	var queue queue
	defer queue.leave()
	for {
		known, err := s.read(ctx)
		if err != nil {
			return fail(err)
		}
		if _, there := known.jobs[podsKey(a)]; there {
			return nil
		}
		taken := known.taken()
		for _, pod := range a.Pods {
			if taken[pod.Address] {
				return fail(fmt.Errorf("%w: %s", errTaken, pod.Address))
			}
		}
		for user, vni := range known.users {
			if (vni == a.VNI) != (user == userKey(a.Owner())) {
				return fail(fmt.Errorf("%w: network %d", errTaken, a.VNI))
			}
		}
		done, err := s.write(ctx, known, put, clientv3.OpPut(userKey(a.Owner()), strconv.FormatUint(uint64(a.VNI), 10)))
		if err != nil {
			return fail(err)
		}
		if done {
			return nil
		}
		queue.join(ctx, s.client)
	}
}

// Leave records that a job has left a node. The last node frees the addresses. No two
// nodes write the same key, so a large job ends without conflicts. If etcd no longer
// holds this allocation, Leave does nothing.
func (s *Store) Leave(ctx context.Context, a siteconf.Allocation, node string) error {
	fail := func(err error) error { return fmt.Errorf("release addresses of %s: %w", a.ID(), err) }
	value, err := json.Marshal(a)
	if err != nil {
		return fail(err)
	}
	current := clientv3.Compare(clientv3.Value(podsKey(a)), "=", string(value))
	// Plugins may have given its address to another pod by now.
	say := []clientv3.Op{clientv3.OpPut(leftKey(a, node), ""), clientv3.OpDelete(atKey(a, node))}
	if len(a.Pods) <= fewPods {
		// The node that finds that all others have left frees the addresses in the
		// same request.
		if _, err := s.client.Txn(ctx).If(current).Then(clientv3.OpTxn(leftBut(a, node), free(a), say)).Commit(); err != nil {
			return fail(err)
		}
		return nil
	}
	said, err := s.client.Txn(ctx).If(current).Then(append(say, clientv3.OpGet(leftKey(a, ""), clientv3.WithPrefix(), clientv3.WithCountOnly()))...).Commit()
	if err != nil {
		return fail(err)
	}
	if !said.Succeeded || said.Responses[len(say)].GetResponseRange().Count < int64(len(a.Pods)) {
		return nil
	}
	if _, err := s.client.Txn(ctx).If(current).Then(free(a)...).Commit(); err != nil {
		return fail(err)
	}
	return nil
}

// fewPods is the largest number of pods in a job whose nodes check by name whether
// the others have left. That saves one request per job, but with many nodes the
// request would become too long.
const fewPods = 8

// leftBut holds when a job has left all of its nodes except one.
func leftBut(a siteconf.Allocation, node string) []clientv3.Cmp {
	var all []clientv3.Cmp
	for _, pod := range a.Pods {
		if pod.Node != node {
			all = append(all, clientv3.Compare(clientv3.CreateRevision(leftKey(a, pod.Node)), ">", 0))
		}
	}
	return all
}

func free(a siteconf.Allocation) []clientv3.Op {
	return []clientv3.Op{clientv3.OpDelete(podsKey(a)), clientv3.OpDelete(leftPrefix(a), clientv3.WithPrefix()), clientv3.OpDelete(atPrefix(a), clientv3.WithPrefix()),
		clientv3.OpDelete(namesPrefix(a), clientv3.WithPrefix())}
}

// Free removes everything that etcd knows about an allocation.
func (s *Store) Free(ctx context.Context, a siteconf.Allocation) error {
	if _, err := s.client.Txn(ctx).Then(free(a)...).Commit(); err != nil {
		return fmt.Errorf("free addresses of %s: %w", a.ID(), err)
	}
	return nil
}

// listing holds everything found below a prefix.
type listing struct {
	jobs map[string]siteconf.Allocation
	at   map[place]netip.Addr
	// names holds the names that users have given, and the names under which runs
	// serve.
	names map[nameOwner]givenNames
	// revision is etcd's revision when the listing was read.
	revision int64
}

// Networks returns the allocations below a prefix, keyed by ID, and the revision at
// which they were read.
func (s *Store) Networks(ctx context.Context, prefix string) (map[string]siteconf.Allocation, int64, error) {
	known, err := s.list(ctx, prefix)
	return known.jobs, known.revision, err
}

func (s *Store) list(ctx context.Context, prefix string) (listing, error) {
	// Without a limit, a request to an unreachable etcd would never fail, and nobody
	// would learn about the outage.
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	got, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return listing{}, fmt.Errorf("ask etcd for pods (%s): %w", prefix, errors.Join(err, context.Cause(ctx)))
	}
	known := listing{jobs: map[string]siteconf.Allocation{}, at: map[place]netip.Addr{}, names: map[nameOwner]givenNames{}, revision: got.Header.Revision}
	for _, kv := range got.Kvs {
		if where, found := placeOf(string(kv.Key)); found {
			if known.at[where], err = netip.ParseAddr(string(kv.Value)); err != nil {
				return listing{}, fmt.Errorf("read address of %s in etcd: %w", where.id, err)
			}
			continue
		}
		if which, found := parseNamesKey(string(kv.Key)); found {
			if known.names[which], err = decodeNames(kv); err != nil {
				return listing{}, err
			}
			continue
		}
		if !isPods(string(kv.Key)) {
			continue
		}
		a, err := decode(kv.Value)
		if err != nil {
			return listing{}, err
		}
		known.jobs[a.ID()] = a
	}
	return known, nil
}

// change is a change of an allocation. If all fields but id are empty, the allocation
// is over.
type change struct {
	id         string
	allocation *siteconf.Allocation
	// at is set if the change is of an address. The address is removed if address is
	// invalid.
	at      *place
	address netip.Addr
	// owner is set if the change is of names.
	owner *nameOwner
	names givenNames
}

// Watch reports changes of allocations below a prefix since a revision. It returns
// when the context ends or the connection is lost.
func (s *Store) Watch(ctx context.Context, prefix string, since int64, report func(change)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for events := range s.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch pods in etcd (%s): %w", prefix, err)
		}
		for _, event := range events.Events {
			c := change{id: path.Base(string(event.Kv.Key))}
			where, found := placeOf(string(event.Kv.Key))
			which, isNames := parseNamesKey(string(event.Kv.Key))
			switch {
			case isNames:
				c.owner, c.names.revision = &which, event.Kv.ModRevision
				if event.Type == clientv3.EventTypePut {
					var err error
					if c.names, err = decodeNames(event.Kv); err != nil {
						return err
					}
				}
			case found:
				c.at = &where
				if event.Type == clientv3.EventTypePut {
					var err error
					if c.address, err = netip.ParseAddr(string(event.Kv.Value)); err != nil {
						return fmt.Errorf("read address of %s in etcd: %w", where.id, err)
					}
				}
			case !isPods(string(event.Kv.Key)):
				continue
			case event.Type == clientv3.EventTypePut:
				a, err := decode(event.Kv.Value)
				if err != nil {
					return err
				}
				c.allocation = &a
			}
			report(c)
		}
	}
	return fmt.Errorf("watch pods in etcd (%s): the connection is lost", prefix)
}
