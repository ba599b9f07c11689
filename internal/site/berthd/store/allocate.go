package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

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

// Allocate assigns all addresses of a job in one step. If the job has an allocation on
// these nodes, Allocate returns that. Allocations never overlap: each is written only if no other allocation
// was written since the taken addresses were read. An address released in between is
// just not used yet.
func (s *Store) Allocate(ctx context.Context, request Request) (siteconf.Allocation, error) {
	fail := func(err error) (siteconf.Allocation, error) {
		return siteconf.Allocation{}, fmt.Errorf("allocate addresses for %s: %w", request.Allocation().ID(), s.explain(err))
	}
	key := podsKey(request.Allocation())
	var queue queue
	defer queue.leave()
	for {
		known, err := s.read(ctx)
		if err != nil {
			return fail(err)
		}
		former, there := known.jobs[key]
		if there && SameNodes(former, request.Nodes) {
			return former, nil
		}
		if err := s.settle(ctx, known); err != nil {
			return fail(err)
		}
		a := request.Allocation()
		a.After = known.guard
		a.Reserved = known.isHost(a.Name)
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

// Allocation returns the allocation without pods.
func (r Request) Allocation() siteconf.Allocation {
	return siteconf.Allocation{Job: r.Job, Login: r.Login, UID: r.UID, User: r.User, Group: r.Group, Name: r.Name}
}

// Refuse records the Problem of a job that gets no addresses, for its other nodes, which are
// waiting. It does nothing if the job has an allocation or a refusal.
func (s *Store) Refuse(ctx context.Context, a siteconf.Allocation) error {
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

// settle waits until etcd no longer counts as new, and returns an error if the context
// ends first. An empty etcd must not assign
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
	k := knowledge{jobs: map[string]siteconf.Allocation{}, users: map[string]uint32{}}
	seen, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(guardKey), clientv3.OpGet(networksKey, clientv3.WithPrefix()),
		clientv3.OpGet(usersKey, clientv3.WithPrefix()), clientv3.OpGet(NodesKey, clientv3.WithPrefix()), clientv3.OpGet(youngKey),
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
	k.nodes, err = addressesOf(values(3))
	return k, err
}

// write commits the operations only if nobody has allocated since k was read, and reports
// whether it did.
func (s *Store) write(ctx context.Context, k knowledge, ops ...clientv3.Op) (bool, error) {
	unchanged := clientv3.Compare(clientv3.ModRevision(guardKey), "=", k.guard)
	written, err := s.client.Txn(ctx).If(unchanged).Then(append(ops, clientv3.OpPut(guardKey, ""))...).Commit()
	if err != nil {
		return false, err
	}
	return written.Succeeded, nil
}

// taken returns the addresses of all pods.
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

// isHost reports whether the name of a job is that of a host with berthd.
func (k knowledge) isHost(job string) bool {
	for host := range k.nodes {
		if siteconf.SameLabel(job, host) {
			return true
		}
	}
	return false
}

// network returns the network identifier of an owner, or one above all that are in use.
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

// ErrTooLarge is wrapped by the error of a job that needs more addresses than there are.
var ErrTooLarge = errors.New("the job has too many nodes")

// choose assigns the lowest free addresses of a range. via maps nodes to their addresses.
func choose(pods netip.Prefix, taken map[netip.Addr]bool, via map[string]netip.Addr, nodes []string) ([]siteconf.Pod, error) {
	var chosen []siteconf.Pod
	pods = pods.Masked()
	// Each node itself uses the first address.
	address := pods.Addr().Next().Next()
	if most := 1<<(32-pods.Bits()) - 3; len(nodes) > most {
		return nil, fmt.Errorf("%w: %d addresses are needed, and pods have %d of %s: use fewer nodes, or give 'pods' a larger range", ErrTooLarge, len(nodes), most, pods)
	}
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

// SameNodes reports whether an allocation has pods on these nodes, in this order.
func SameNodes(a siteconf.Allocation, nodes []string) bool {
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

// Restore writes an allocation that etcd has lost. It fails with ErrTaken if an
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
				return fail(fmt.Errorf("%w: %s", ErrTaken, pod.Address))
			}
		}
		for user, vni := range known.users {
			if (vni == a.VNI) != (user == userKey(a.Owner())) {
				return fail(fmt.Errorf("%w: network %d", ErrTaken, a.VNI))
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
	// Delete the pod's address, too: plugins may have given it to another pod by now.
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

// leftBut returns comparisons that hold when a job has left all of its nodes except one.
func leftBut(a siteconf.Allocation, node string) []clientv3.Cmp {
	var all []clientv3.Cmp
	for _, pod := range a.Pods {
		if pod.Node != node {
			all = append(all, clientv3.Compare(clientv3.CreateRevision(leftKey(a, pod.Node)), ">", 0))
		}
	}
	return all
}

// free returns the operations that remove an allocation.
func free(a siteconf.Allocation) []clientv3.Op {
	return []clientv3.Op{clientv3.OpDelete(podsKey(a)), clientv3.OpDelete(leftPrefix(a), clientv3.WithPrefix()), clientv3.OpDelete(atPrefix(a), clientv3.WithPrefix()),
		clientv3.OpDelete(namesPrefix(a), clientv3.WithPrefix())}
}

// Free removes an allocation from etcd. Its owner keeps the network identifier.
func (s *Store) Free(ctx context.Context, a siteconf.Allocation) error {
	if _, err := s.client.Txn(ctx).Then(free(a)...).Commit(); err != nil {
		return fmt.Errorf("free addresses of %s: %w", a.ID(), err)
	}
	return nil
}
