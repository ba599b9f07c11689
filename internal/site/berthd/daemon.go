package berthd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// kernel makes links, routes and rules as they shall be: vxlan.Kernel.
type kernel interface {
	Apply(ctx context.Context, s vxlan.State, check bool) error
}

// Daemon is berthd on one node.
type Daemon struct {
	config siteconf.Config
	// node is what Slurm calls this one, and host its address.
	node   string
	host   netip.Addr
	store  *Store
	kernel kernel
	// routed are the subnets of nodes, or nil.
	routed *vxlan.Routed
	// cni is what connects pods in place of kernel, or nil.
	cni   *podcni.Network
	names *nameServer
	audit *audit
	// metrics are for Prometheus, and whether etcd answered the last time.
	metrics metrics
	// gateways are how pods of this node reach the outside.
	gateways *gateways
	etcdUp   atomic.Bool
	log      *slog.Logger
	// daemons are the users of Policy.Daemons.
	daemons []uint32

	// sessions has a mutex for each user, by his number, held by who begins or ends to count
	// his sessions, so that the end of the last one and the beginning of the next do not mix.
	sessions sync.Map
	// logins are the sessions that begin.
	logins logins

	// applying is held by who changes the kernel, so that an older state never
	// comes after a newer one.
	applying sync.Mutex

	// background is what is waited for at the end.
	background sync.WaitGroup

	// serving is held by who looks at what runs here serve, or tells etcd of it.
	serving sync.Mutex

	// heard is signalled when CNI plugins have said something of a pod.
	heard *sync.Cond

	mu sync.Mutex
	// local are the allocations with a pod here, by ID.
	local map[string]*localPod
	// firsts are the processes 1 of pods that this daemon has started, by ID.
	firsts map[string]*os.Process
	// users are followed by the owner of their network.
	users map[string]*follower
	// everybody is followed on hosts that reach all pods, and nil on others. led are those
	// that such a host reached by the daemon before, which stay until etcd has said more.
	everybody *follower
	led       []vxlan.Peer
	// waiting counts those who need a follower and have no pod yet.
	waiting map[string]int
	// dirty asks for the kernel to be looked at again, and doubted for a look at all of it.
	dirty   chan struct{}
	doubted atomic.Bool
}

// localPod is a job's, or that of sessions, on this node.
type localPod struct {
	siteconf.Allocation
	ready bool
	// address is what CNI plugins have given it, and problem why they have not.
	address netip.Addr
	problem error
	// failed is what plugins have said last of it, if that was an error.
	failed error
	// pending: plugins are at it; again: they are to be asked once more.
	pending, again bool
	// told is the address of it that etcd knows: steps run with no other.
	told netip.Addr
	// named are the names that its user has given it, here or on another node, and served
	// those by which runs here serve something, as etcd has them.
	named, served given
	// renamed is how often they were changed here.
	renamed int
	// waitsSince is when names of runs here were to change that have not yet.
	waitsSince time.Time
	// loaded: a daemon before this one has made it, and this one not yet seen it connected.
	loaded bool
}

// here is the allocation with what is known of the pod on this node alone.
func (l *localPod) here(node string) siteconf.Allocation { return with(l.Allocation, node, l.address) }

// with is an allocation in which the pod on a node has an address, if it is one.
func with(a siteconf.Allocation, node string, address netip.Addr) siteconf.Allocation {
	if !address.IsValid() {
		return a
	}
	a.Pods = slices.Clone(a.Pods)
	for i := range a.Pods {
		if a.Pods[i].Node == node {
			a.Pods[i].Address = address
		}
	}
	return a
}

const (
	// attachTimeout bounds how long a step waits for its network. Slurm gives up a
	// launch on its own after some more.
	attachTimeout = 15 * time.Second
	// refuseLimit is how long etcd may take to note that a job gets no network. Together
	// with leaveLimit this has to end before the plugin gives up (ANSWER_LIMIT in
	// spank/client.c), which otherwise knows no reason.
	refuseLimit = 2 * time.Second
)

func (d *Daemon) podFile(id string) string { return filepath.Join(d.config.Run, "pods", id) }

// network is the file of a pod's network namespace, and processes that of its PID
// namespace.
func (d *Daemon) network(id string) string   { return filepath.Join(d.config.Run, "net", id) }
func (d *Daemon) processes(id string) string { return filepath.Join(d.config.Run, "pid", id) }

// load reads which pods were here when the daemon ended.
func (d *Daemon) load() error {
	for _, dir := range []string{"pods", "net", "pid", "resolv", "sessions", "declined", servedDir} {
		if err := os.MkdirAll(filepath.Join(d.config.Run, dir), 0o700); err != nil {
			return fmt.Errorf("make directory of berthd: %w", err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(d.config.Run, "pods"))
	if err != nil {
		return fmt.Errorf("list pods of this node: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(d.config.Run, "pods", entry.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read pod of this node: %w", err)
		}
		var a siteconf.Allocation
		if err := json.Unmarshal(text, &a); err != nil || a.ID() != entry.Name() {
			// Written in one piece, so not by us. Its name is no job's.
			d.log.Warn("remove a file that is no pod", "path", path, "error", err)
			os.Remove(path)
			continue
		}
		d.local[a.ID()] = &localPod{Allocation: a, loaded: true}
	}
	return d.removeStrays()
}

// removeStrays removes namespaces without a pod: the daemon was killed between
// the two.
func (d *Daemon) removeStrays() error {
	var problems []error
	for dir, remove := range map[string]func(string) error{"net": vxlan.RemoveNamespace, "pid": endProcesses, "resolv": os.Remove} {
		dir = filepath.Join(d.config.Run, dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("list namespaces of this node: %w", err)
		}
		for _, entry := range entries {
			if d.local[entry.Name()] == nil {
				problems = append(problems, remove(filepath.Join(dir, entry.Name())))
			}
		}
	}
	return errors.Join(problems...)
}

// Attach returns a job's pod on this node, which is made if there is none. A
// request with nodes comes from the first node of the job, and
// allocates its addresses.
func (d *Daemon) Attach(ctx context.Context, request Request) (siteconf.Pod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attachTimeout, fmt.Errorf("etcd has not answered within %s", attachTimeout))
	defer cancel()
	if pod, ready := d.attached(request); ready {
		return pod, nil
	}
	began := time.Now()
	request.Group = d.config.GroupOf(request.User)
	owner := request.empty(0).Owner()
	user := d.follow(owner)
	defer d.unfollow(owner)
	if len(request.Nodes) > 0 {
		a, err := d.store.Allocate(ctx, request)
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
			}
			return siteconf.Pod{}, d.refuse(ctx, user, request, err)
		}
		user.put(a)
	}
	id := request.empty(0).ID()
	a, err := user.await(ctx, id, d.node)
	if err != nil {
		return siteconf.Pod{}, err
	}
	made, err := d.add(ctx, a)
	if err != nil {
		return siteconf.Pod{}, err
	}
	d.again(id)
	if err := d.apply(ctx, false); err != nil {
		return siteconf.Pod{}, err
	}
	if err := d.settle(ctx, id); err != nil {
		return siteconf.Pod{}, err
	}
	// Also for a step that has not made the pod: who did may not have come so far.
	if err := d.publish(ctx, id); err != nil {
		return siteconf.Pod{}, err
	}
	pod, ready, _ := d.connected(request)
	if !ready {
		return siteconf.Pod{}, d.whyNot(id)
	}
	if !made {
		return pod, nil
	}
	a = with(a, d.node, pod.Address)
	d.metrics.attached(time.Since(began))
	d.audit.write(auditJoined, a, nil)
	d.log.Info("job has a network", "job", id, "user", a.User, "uid", a.UID, "address", pod.Address, "network", a.VNI, "took", time.Since(began))
	return pod, nil
}

// whyNot says why a pod is not ready.
func (d *Daemon) whyNot(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if local := d.local[id]; local != nil && local.problem != nil {
		return local.problem
	}
	return fmt.Errorf("connect %s: it was released meanwhile", id)
}

// refuse lets the later steps of the job and its other nodes know.
func (d *Daemon) refuse(ctx context.Context, user *follower, request Request, why error) error {
	d.metrics.refuse()
	d.audit.write(auditRefused, request.empty(0), why)
	if request.Login != "" {
		// Nobody else waits, and the next session may have more luck.
		return why
	}
	refused := request.empty(0)
	refused.Problem = why.Error()
	user.put(refused)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refuseLimit)
	defer cancel()
	if err := d.store.Refuse(ctx, request, why); err != nil {
		d.log.Warn("refuse", "error", err)
	}
	return why
}

// attached is the pod of a request if it is connected, and etcd knows where.
func (d *Daemon) attached(request Request) (siteconf.Pod, bool) {
	pod, ready, told := d.connected(request)
	return pod, ready && told
}

// connected is the pod of a request, whether it is ready, and whether etcd knows where.
func (d *Daemon) connected(request Request) (pod siteconf.Pod, ready, told bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	local := d.local[request.empty(0).ID()]
	// A job that Slurm has put into the queue again keeps its number, but may
	// have other nodes.
	if local == nil || !local.ready || local.UID != request.UID || len(request.Nodes) > 0 && !sameNodes(local.Allocation, request.Nodes) {
		return siteconf.Pod{}, false, false
	}
	pod, _ = local.here(d.node).On(d.node)
	return pod, true, local.told == local.address
}

// add makes the namespaces and remembers the pod, in this order: a namespace
// without a pod is removed at the next start. It says whether there was none:
// steps, and sessions, may come at the same time.
func (d *Daemon) add(ctx context.Context, a siteconf.Allocation) (bool, error) {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.mu.Lock()
	former := d.local[a.ID()]
	d.mu.Unlock()
	if former != nil && former.UID != a.UID {
		// The number of a job whose epilog was lost has become another's: nothing of the former's may be entered.
		if err := d.dislodge(ctx, former); err != nil {
			return false, err
		}
		former = nil
	}
	if former != nil && former.After == a.After {
		return false, nil
	}
	if err := d.make(a); err != nil {
		if former == nil {
			err = errors.Join(err, d.unmake(a.ID()))
		}
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.local[a.ID()] = &localPod{Allocation: a}
	return true, nil
}

// dislodge removes a pod whose identifier somebody else's has now. Its interface goes when the new one is
// connected, or with the namespace.
func (d *Daemon) dislodge(ctx context.Context, former *localPod) error {
	id := former.ID()
	err := d.unmake(id)
	if err == nil {
		d.mu.Lock()
		delete(d.local, id)
		d.endUnused(former.Owner())
		d.mu.Unlock()
		d.leave(ctx, former.Allocation)
	}
	d.audit.write(auditLeft, former.here(d.node), nil)
	d.log.Warn("a job's number is another user's: what was left of the former one is removed", "job", id, "user", former.User, "uid", former.UID, "error", err)
	return err
}

func (d *Daemon) make(a siteconf.Allocation) error {
	if err := vxlan.NewNamespace(d.network(a.ID()), d.cni != nil); err != nil {
		return err
	}
	if err := d.startProcesses(a.ID()); err != nil {
		return err
	}
	if err := d.writeResolver(a); err != nil {
		return err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("remember pod of %s: %w", a.ID(), err)
	}
	temporary := filepath.Join(d.config.Run, "new-pod")
	if err = os.WriteFile(temporary, text, 0o600); err == nil {
		err = os.Rename(temporary, d.podFile(a.ID()))
	}
	if err != nil {
		return fmt.Errorf("remember pod of %s: %w", a.ID(), err)
	}
	return nil
}

// unmake removes what there is of a pod: nobody asks for its end if it has not
// begun.
func (d *Daemon) unmake(id string) error {
	return errors.Join(d.forget(id), d.endPod(id), vxlan.RemoveNamespace(d.network(id)))
}

func (d *Daemon) forget(id string) error {
	var problems []error
	for _, file := range []string{d.podFile(id), d.resolver(id)} {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			problems = append(problems, fmt.Errorf("forget pod %s: %w", id, err))
		}
	}
	return errors.Join(problems...)
}

// Release removes a job's pod from this node, and says so in etcd. Should etcd
// not answer, the collector frees the addresses later: a job's end never fails
// because of its network.
func (d *Daemon) Release(ctx context.Context, id string) error {
	a, err := d.drop(ctx, id)
	if err != nil || a == nil {
		return err
	}
	d.leave(ctx, *a)
	return nil
}

// leave says in etcd that a pod is not on this node any more. The end of a job need not wait for that.
func (d *Daemon) leave(ctx context.Context, a siteconf.Allocation) {
	d.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdLimit)
		defer cancel()
		if err := d.store.Leave(ctx, a, d.node); err != nil {
			d.log.Warn("addresses are left to the collector", "job", a.ID(), "error", err)
		}
	})
}

// drop removes a pod from this node alone.
func (d *Daemon) drop(ctx context.Context, id string) (*siteconf.Allocation, error) {
	d.mu.Lock()
	local := d.local[id]
	if local == nil {
		d.mu.Unlock()
		return nil, nil
	}
	delete(d.local, id)
	d.endUnused(local.Owner())
	d.mu.Unlock()
	// What still runs there ends first, so that others hear of the end of its connections.
	err := errors.Join(d.forget(id), d.endPod(id), d.apply(ctx, false), d.unmake(id))
	d.audit.write(auditLeft, local.here(d.node), nil)
	d.log.Info("job has left its network", "job", id, "user", local.User, "uid", local.UID, "network", local.VNI, "error", err)
	return &local.Allocation, err
}

// apply makes the kernel as it should be, and only then calls pods ready. With check,
// it is looked whether all is still so, and CNI plugins are asked.
func (d *Daemon) apply(ctx context.Context, check bool) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	state, ids := d.state()
	doubted := d.doubted.Swap(false)
	err := d.kernel.Apply(ctx, state, check || doubted)
	if err == nil && d.cni != nil {
		ids, err = d.connect(ctx, check)
	}
	if err == nil {
		err = d.names.apply(d.table())
	}
	if err != nil {
		d.metrics.fail()
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		if local := d.local[id]; local != nil {
			local.ready = true
		}
	}
	return nil
}

// state is what should be on this node, and for which pods.
func (d *Daemon) state() (vxlan.State, []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := vxlan.State{Pods: d.config.Pods, Gateway: d.config.Gateway(), IPv6: d.config.IPv6, Host: d.host, Port: d.config.Tunnel.Port, Daemons: d.daemons, Flows: d.config.Policy.Flows, Names: d.config.DNS.Program != "",
		Hosts: d.config.Hosts, Beyond: d.config.Gateways.Networks, Forwards: d.isGateway(), Interfaces: d.config.Gateways.Interfaces, As: d.config.Gateways.As[d.node], Routed: d.routed}
	networks := map[string]*vxlan.Network{}
	var ids []string
	if d.cni != nil {
		return s, nil
	}
	var here []netip.Addr
	for _, local := range d.local {
		pod, _ := local.On(d.node)
		here = append(here, pod.Address)
	}
	through := d.gateways.assign(here)
	if len(here) > 0 {
		s.Gateways = d.gateways.all()
	}
	for id, local := range d.local {
		n := networks[local.Owner()]
		if n == nil {
			n = &vxlan.Network{VNI: local.VNI}
			networks[local.Owner()] = n
		}
		n.Own(d.owner(local.Allocation))
		pod, _ := local.On(d.node)
		n.Local = append(n.Local, vxlan.Pod{Address: pod.Address, Owner: local.UID, Namespace: d.network(id), Gateway: through[pod.Address]})
		ids = append(ids, id)
	}
	for owner, n := range networks {
		n.Peers = d.peers(owner)
		s.Networks = append(s.Networks, *n)
	}
	if d.everybody != nil && d.everybody.listed() {
		for _, a := range d.everybody.all() {
			s.Outside = append(s.Outside, d.others(a)...)
		}
	} else {
		s.Outside = slices.Clone(d.led)
	}
	s.Sort()
	return s, ids
}

// owner is the user of a pod, with what the site lets him reach.
func (d *Daemon) owner(a siteconf.Allocation) vxlan.Owner {
	rules := d.config.Policy.Users[a.User]
	return vxlan.Owner{
		UID:     a.UID,
		Egress:  slices.Concat(d.config.Policy.Egress, rules.Egress),
		Ingress: slices.Concat(d.config.Policy.Ingress, rules.Ingress),
	}
}

// peers are the pods of a network on other nodes: those that etcd knows, and those
// of the jobs that are here, should it have forgotten them.
func (d *Daemon) peers(owner string) []vxlan.Peer {
	var peers []vxlan.Peer
	for _, a := range d.known(owner) {
		peers = append(peers, d.others(a)...)
	}
	return peers
}

// known are the jobs and sessions in a network, by ID.
func (d *Daemon) known(owner string) map[string]siteconf.Allocation {
	all := map[string]siteconf.Allocation{}
	if user := d.users[owner]; user != nil {
		all = user.all()
	}
	for id, local := range d.local {
		if local.Owner() != owner {
			continue
		}
		a, known := all[id]
		if !known {
			a = local.Allocation
		}
		all[id] = with(a, d.node, local.address)
	}
	return all
}

// others are the pods of a job on other nodes.
func (d *Daemon) others(a siteconf.Allocation) []vxlan.Peer {
	var peers []vxlan.Peer
	for _, pod := range a.Pods {
		if pod.Node != d.node {
			peers = append(peers, vxlan.Peer{Address: pod.Address, Via: pod.Via})
		}
	}
	return peers
}

// reconcile applies whenever something has changed elsewhere, and now and then
// in any case: somebody may have removed what is ours.
func (d *Daemon) reconcile(ctx context.Context) error {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		check := false
		select {
		case <-ctx.Done():
			return nil
		case <-d.dirty:
		case <-ticker.C:
			check = true
		}
		if err := d.apply(ctx, check); err != nil && ctx.Err() == nil {
			d.log.Error("bring the network of this node up to date", "error", err)
		}
	}
}

func (d *Daemon) touch() {
	select {
	case d.dirty <- struct{}{}:
	default:
	}
}
