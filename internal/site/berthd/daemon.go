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

// kernel configures links, routes and rules; vxlan.Kernel implements it.
type kernel interface {
	Apply(ctx context.Context, s vxlan.State, check bool) error
}

// Daemon is berthd on one node.
type Daemon struct {
	config siteconf.Config
	// node is Slurm's name of this node, and host its address.
	node   string
	host   netip.Addr
	store  *Store
	kernel kernel
	// routed holds the subnets of nodes, or nil.
	routed *vxlan.Routed
	// cni connects pods instead of kernel, or is nil.
	cni        *podcni.Network
	nameServer *nameServer
	// jobNames keeps the names of jobs here, and runs the names of their runs.
	jobNames *jobNames
	runs     *namedRuns
	audit    *audit
	metrics  *metrics
	// gateways chooses how pods of this node reach the outside.
	gateways *gateways
	log      *slog.Logger
	// daemons holds the users of Policy.Daemons.
	daemons []uint32

	optOuts  *optOuts
	sessions *sessions
	server   *server

	// applying is held while the kernel is changed, so that an older state never replaces a
	// newer one.
	applying sync.Mutex

	// background counts the goroutines that Run waits for at the end.
	background sync.WaitGroup

	// heard is signalled when CNI plugins have finished with a pod.
	heard *sync.Cond

	mu sync.Mutex
	// local holds the allocations with a pod here, by ID.
	local map[string]*localPod
	// firsts holds process 1 of each pod that this daemon has started, by ID.
	firsts map[string]*os.Process
	// users holds the followers of networks, by the owner of the network.
	users map[string]*follower
	// everybody follows all pods on hosts that reach all pods, and is nil on others. led holds
	// the pods that the previous daemon reached. They stay until etcd has answered.
	everybody *follower
	led       []vxlan.Peer
	// waiting counts the requests that need a follower and have no pod yet.
	waiting map[string]int
	// dirty requests another apply. doubted makes the next apply check the whole kernel state.
	dirty   chan struct{}
	doubted atomic.Bool
}

// localPod is the pod of a job, or of a user's sessions, on this node.
type localPod struct {
	siteconf.Allocation
	ready bool
	// address comes from CNI plugins; problem is the reason if they gave none.
	address netip.Addr
	problem error
	// failed is the last error of the plugins, if their last call failed.
	failed error
	// pending: plugins are running for it; again: they must be called once more.
	pending, again bool
	// told is its address in etcd. Steps run only if that is the current address.
	told netip.Addr
	// loaded: a previous daemon made it, and this one has not yet seen it connected.
	loaded bool
}

// here returns the allocation with the address that only this node knows.
func (l *localPod) here(node string) siteconf.Allocation { return with(l.Allocation, node, l.address) }

// with returns the allocation with another address for the pod on a node, if that is valid.
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

// newDaemon returns a daemon whose parts know each other. It starts nothing.
func newDaemon(config siteconf.Config, node string, host netip.Addr, store *Store, kernel kernel, log *slog.Logger) *Daemon {
	d := &Daemon{
		config: config, node: node, host: host, store: store, kernel: kernel, log: log,
		local: map[string]*localPod{}, firsts: map[string]*os.Process{}, users: map[string]*follower{}, waiting: map[string]int{},
		dirty: make(chan struct{}, 1),
	}
	d.heard = sync.NewCond(&d.mu)
	d.metrics = &metrics{pods: d.count, log: log}
	d.audit = &audit{path: config.Audit, node: node, ipv6: config.IPv6, log: log, now: time.Now}
	d.optOuts = &optOuts{dir: filepath.Join(config.Run, "declined"), allowed: config.OptOut, log: log}
	d.sessions = &sessions{dir: filepath.Join(config.Run, "sessions"), log: log}
	d.server = &server{
		do: d.do, log: log,
		clients: clientLimits{subordinates: subordinates{path: "/etc/subuid", number: userNumber}}, begun: startLimit{most: maxBegun},
	}
	d.gateways = &gateways{
		node: node, host: host, config: config.Gateways, store: store, log: log, changed: d.touch,
		again: make(chan struct{}, 1), living: map[string]netip.Addr{},
	}
	d.jobNames = &jobNames{node: node, store: store, jobs: map[string]*namedJob{}, changed: map[string]time.Time{}}
	d.runs = &namedRuns{dir: filepath.Join(config.Run, servedDir), node: node, names: d.jobNames, log: log}
	d.nameServer = &nameServer{config: config.DNS, dir: filepath.Join(config.Run, "names"), address: d.resolverAddress(), log: log, again: d.touch}
	return d
}

// count returns the number of pods here, of jobs and of sessions.
func (d *Daemon) count() (jobs, sessions int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, local := range d.local {
		if local.Login != "" {
			sessions++
		} else {
			jobs++
		}
	}
	return jobs, sessions
}

const (
	// attachTimeout bounds how long a step waits for its network. Slurm itself aborts a launch
	// somewhat later.
	attachTimeout = 15 * time.Second
	// refuseLimit bounds the time for recording in etcd that a job gets no network. The plugin
	// gives up after ANSWER_LIMIT (spank/client.c). attachTimeout, leaveLimit and refuseLimit
	// together must be shorter, or the plugin cannot report a reason.
	refuseLimit = 2 * time.Second
)

func (d *Daemon) podFile(id string) string { return filepath.Join(d.config.Run, "pods", id) }

// network returns the file of a pod's network namespace, and processes the file of its PID
// namespace.
func (d *Daemon) network(id string) string   { return filepath.Join(d.config.Run, "net", id) }
func (d *Daemon) processes(id string) string { return filepath.Join(d.config.Run, "pid", id) }

// load reads the pods that were here when the previous daemon ended.
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
			// The daemon replaces files as a whole, so this file is not its own.
			d.log.Warn("remove a file that is not a pod", "path", path, "error", err)
			os.Remove(path)
			continue
		}
		d.put(&localPod{Allocation: a, loaded: true})
	}
	return d.removeStrays()
}

// put and remove change the pods here. The caller holds the mutex.
func (d *Daemon) put(local *localPod) {
	d.local[local.ID()] = local
	d.jobNames.add(local.Allocation)
}

func (d *Daemon) remove(id string) {
	delete(d.local, id)
	d.jobNames.remove(id)
}

// removeStrays removes namespaces without a pod, which remain if the daemon is killed between
// making the namespaces and recording the pod.
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

// Attach returns a job's pod on this node, and makes it if there is none. The request of the
// job's first node has the list of nodes, and allocates the job's addresses.
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
	// Publish even if another step made the pod: it may not have published it yet.
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

// whyNot returns the reason that a pod is not ready.
func (d *Daemon) whyNot(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if local := d.local[id]; local != nil && local.problem != nil {
		return local.problem
	}
	return fmt.Errorf("connect %s: it was released meanwhile", id)
}

// refuse records why a job gets no network, for its later steps and its other nodes.
func (d *Daemon) refuse(ctx context.Context, user *follower, request Request, why error) error {
	d.metrics.refuse()
	d.audit.write(auditRefused, request.empty(0), why)
	if request.Login != "" {
		// No other node waits, and the next session may succeed.
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

// attached returns the pod of a request, if it is connected and its address is in etcd.
func (d *Daemon) attached(request Request) (siteconf.Pod, bool) {
	pod, ready, told := d.connected(request)
	return pod, ready && told
}

// connected returns the pod of a request, and reports whether it is ready and whether its
// address is in etcd.
func (d *Daemon) connected(request Request) (pod siteconf.Pod, ready, told bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	local := d.local[request.empty(0).ID()]
	// A requeued job keeps its number, but may have other nodes.
	if local == nil || !local.ready || local.UID != request.UID || len(request.Nodes) > 0 && !sameNodes(local.Allocation, request.Nodes) {
		return siteconf.Pod{}, false, false
	}
	pod, _ = local.here(d.node).On(d.node)
	return pod, true, local.told == local.address
}

// add makes the namespaces and then records the pod. In this order, the next start removes a
// namespace whose pod was not recorded. It reports whether it made the pod, as several steps
// or sessions may ask at the same time.
func (d *Daemon) add(ctx context.Context, a siteconf.Allocation) (bool, error) {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.mu.Lock()
	former := d.local[a.ID()]
	d.mu.Unlock()
	if former != nil && former.UID != a.UID {
		// A job's epilog was lost, and another user's job has its number. Nobody may enter the
		// former job's namespaces.
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
	d.put(&localPod{Allocation: a})
	return true, nil
}

// dislodge removes a pod whose identifier now belongs to another user's pod. Its interface
// disappears with the namespace, or when the new pod is connected.
func (d *Daemon) dislodge(ctx context.Context, former *localPod) error {
	id := former.ID()
	err := d.unmake(id)
	if err == nil {
		d.mu.Lock()
		d.remove(id)
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

// unmake removes what exists of a pod. It cleans up after a pod that was made only in part.
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

// Release removes a job's pod from this node and from etcd. If etcd does not answer, the
// collector frees the addresses later: a job's end never fails because of its network.
func (d *Daemon) Release(ctx context.Context, id string) error {
	a, err := d.drop(ctx, id)
	if err != nil || a == nil {
		return err
	}
	d.leave(ctx, *a)
	return nil
}

// leave records in etcd, in the background, that a pod has left this node.
func (d *Daemon) leave(ctx context.Context, a siteconf.Allocation) {
	d.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdLimit)
		defer cancel()
		if err := d.store.Leave(ctx, a, d.node); err != nil {
			d.log.Warn("addresses are left to the collector", "job", a.ID(), "error", err)
		}
	})
}

// drop removes a pod from this node, but not from etcd.
func (d *Daemon) drop(ctx context.Context, id string) (*siteconf.Allocation, error) {
	d.mu.Lock()
	local := d.local[id]
	if local == nil {
		d.mu.Unlock()
		return nil, nil
	}
	d.remove(id)
	d.endUnused(local.Owner())
	d.mu.Unlock()
	// End its processes first, so that the peers of their connections learn of the end.
	err := errors.Join(d.forget(id), d.endPod(id), d.apply(ctx, false), d.unmake(id))
	d.audit.write(auditLeft, local.here(d.node), nil)
	d.log.Info("job has left its network", "job", id, "user", local.User, "uid", local.UID, "network", local.VNI, "error", err)
	return &local.Allocation, err
}

// apply configures the kernel, and only then marks pods as ready. With check it also verifies
// the whole kernel state and calls CHECK of CNI plugins.
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
		err = d.nameServer.apply(d.table())
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

// state returns the desired state of this node, and the IDs of the pods in it.
func (d *Daemon) state() (vxlan.State, []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := vxlan.State{Pods: d.config.Pods, Gateway: d.config.Gateway(), IPv6: d.config.IPv6, Host: d.host, Port: d.config.Tunnel.Port, Daemons: d.daemons, Flows: d.config.Policy.Flows, Names: d.config.DNS.Program != "",
		Hosts: d.config.Hosts, Beyond: d.config.Gateways.Networks, Forwards: d.gateways.here(), Interfaces: d.config.Gateways.Interfaces, As: d.config.Gateways.As[d.node], Routed: d.routed}
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

// owner returns the user of a pod, with the site's rules for connections.
func (d *Daemon) owner(a siteconf.Allocation) vxlan.Owner {
	rules := d.config.Policy.Users[a.User]
	return vxlan.Owner{
		UID:     a.UID,
		Egress:  slices.Concat(d.config.Policy.Egress, rules.Egress),
		Ingress: slices.Concat(d.config.Policy.Ingress, rules.Ingress),
	}
}

// peers returns the pods of a network on other nodes: all that etcd knows, and the pods of jobs
// here even if etcd has lost them.
func (d *Daemon) peers(owner string) []vxlan.Peer {
	var peers []vxlan.Peer
	for _, a := range d.known(owner) {
		peers = append(peers, d.others(a)...)
	}
	return peers
}

// known returns the jobs and sessions in a network, by ID.
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

// others returns the pods of a job on other nodes.
func (d *Daemon) others(a siteconf.Allocation) []vxlan.Peer {
	var peers []vxlan.Peer
	for _, pod := range a.Pods {
		if pod.Node != d.node {
			peers = append(peers, vxlan.Peer{Address: pod.Address, Via: pod.Via})
		}
	}
	return peers
}

// reconcile applies the state after each change elsewhere, and once a minute with check, in
// case somebody has removed berthd's links or rules.
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
