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
	"sync"
	"time"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/berthd/pidns"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// pods keeps the pods of this node, with their namespaces and files.
type pods struct {
	// node is Slurm's name of this node.
	node      string
	config    siteconf.Config
	processes *pidns.Namespaces
	resolvers *resolvers
	names     *jobNames
	watch     *watch
	log       *slog.Logger

	mu sync.Mutex
	// local holds the allocations with a pod here, by ID.
	local map[string]*localPod
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
	// pending reports whether plugins are running for the pod, and again whether they must
	// be called once more.
	pending, again bool
	// published is the pod's address in etcd. Steps run only if that is the current address.
	published netip.Addr
	// unmarked reports whether the mark of slurmstepd cannot be trusted in the pod.
	unmarked bool
	// loaded reports whether a previous daemon created the pod, and this daemon has not seen
	// it connected yet.
	loaded bool
}

// here returns the allocation with the address that only this node knows.
func (l *localPod) here(node string) siteconf.Allocation { return l.With(node, l.address) }

// file returns the file that remembers a pod, and namespace the file of its network namespace.
func (p *pods) file(id string) string      { return filepath.Join(p.config.Run, "pods", id) }
func (p *pods) namespace(id string) string { return filepath.Join(p.config.Run, "net", id) }

// markLimit bounds the time for marking the packets of slurmstepd in all pods, when berthd starts. A
// pod takes some milliseconds.
const markLimit = 10 * time.Second

// load reads the pods that were here when the previous daemon ended.
func (p *pods) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, markLimit)
	defer cancel()
	entries, err := os.ReadDir(filepath.Join(p.config.Run, "pods"))
	if err != nil {
		return fmt.Errorf("list pods of this node: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(p.config.Run, "pods", entry.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read pod of this node: %w", err)
		}
		var a siteconf.Allocation
		if err := json.Unmarshal(text, &a); err != nil || a.ID() != entry.Name() {
			// The daemon replaces files as a whole, so this file is not its own.
			p.log.Warn("remove a file that is not a pod", "path", path, "error", err)
			os.Remove(path)
			continue
		}
		local := &localPod{Allocation: a, loaded: true}
		p.put(local)
		// A berthd without these rules may have made the pod. One pod must not keep this node
		// without berthd.
		if vxlan.IsNamespace(p.namespace(a.ID())) {
			if err := p.markStepd(ctx, a); err != nil {
				local.unmarked = true
				p.log.Error("the policy also applies to slurmstepd in a pod until berthd is restarted", "job", a.ID(), "error", err)
			}
		}
	}
	return p.removeStrays()
}

// put adds or replaces a pod here and follows its network; remove undoes both. The caller holds
// the mutex.
func (p *pods) put(local *localPod) {
	p.watch.follow(local.Owner())
	if former := p.local[local.ID()]; former != nil {
		p.watch.unfollow(former.Owner())
	}
	p.local[local.ID()] = local
	p.names.add(local.Allocation)
}

func (p *pods) remove(id string) {
	p.watch.unfollow(p.local[id].Owner())
	delete(p.local, id)
	p.names.remove(id)
}

// len returns the number of pods here.
func (p *pods) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.local)
}

// has reports whether a pod is here.
func (p *pods) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.local[id] != nil
}

// removeStrays removes namespaces and resolv.conf files without a pod, which remain if the daemon is killed between
// making the namespaces and recording the pod.
func (p *pods) removeStrays() error {
	var problems []error
	for dir, remove := range map[string]func(string) error{"net": vxlan.RemoveNamespace, "pid": pidns.End, "resolv": os.Remove} {
		dir = filepath.Join(p.config.Run, dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("list namespaces of this node: %w", err)
		}
		for _, entry := range entries {
			if p.local[entry.Name()] == nil {
				problems = append(problems, remove(filepath.Join(dir, entry.Name())))
			}
		}
	}
	return errors.Join(problems...)
}

// make creates the namespaces and the resolv.conf of a pod, and records the pod last.
func (p *pods) make(ctx context.Context, a siteconf.Allocation) error {
	if err := vxlan.NewNamespace(p.namespace(a.ID()), p.config.ByCNI()); err != nil {
		return err
	}
	if err := p.markStepd(ctx, a); err != nil {
		return err
	}
	if err := p.processes.Start(a.ID()); err != nil {
		return err
	}
	if err := p.resolvers.write(a); err != nil {
		return err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("remember pod of %s: %w", a.ID(), err)
	}
	temporary := filepath.Join(p.config.Run, "new-pod")
	if err = os.WriteFile(temporary, text, 0o600); err == nil {
		err = os.Rename(temporary, p.file(a.ID()))
	}
	if err != nil {
		return fmt.Errorf("remember pod of %s: %w", a.ID(), err)
	}
	return nil
}

// markStepd lets slurmstepd in the pod of a job past the policy. Where plugins connect pods,
// berthd has no policy.
func (p *pods) markStepd(ctx context.Context, a siteconf.Allocation) error {
	if p.config.ByCNI() {
		return nil
	}
	return vxlan.MarkStepd(ctx, p.config.NFT, p.namespace(a.ID()), a.Login != "")
}

// unmake removes what exists of a pod. It cleans up after a pod that was made only in part.
func (p *pods) unmake(id string) error {
	return errors.Join(p.forget(id), p.processes.End(id), vxlan.RemoveNamespace(p.namespace(id)))
}

// forget removes the record and the resolv.conf of a pod.
func (p *pods) forget(id string) error {
	var problems []error
	for _, file := range []string{p.file(id), p.resolvers.file(id)} {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			problems = append(problems, fmt.Errorf("forget pod %s: %w", id, err))
		}
	}
	return errors.Join(problems...)
}

// enter opens the network namespace and the PID namespace of a pod, in this order, and adds
// the path of the pod's resolv.conf to the answer.
func (p *pods) enter(id string, answer map[string]string) ([]*os.File, error) {
	if p.config.DNS.Program != "" {
		answer["resolver"] = p.resolvers.file(id)
	}
	var files []*os.File
	for _, path := range []string{p.namespace(id), p.processes.File(id)} {
		file, err := os.Open(path)
		if err != nil {
			linux.CloseAll(files)
			return nil, fmt.Errorf("open namespace of %s: %w", id, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// allocation returns the allocation of a pod here.
func (p *pods) allocation(id string) (siteconf.Allocation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if local := p.local[id]; local != nil {
		return local.Allocation, true
	}
	return siteconf.Allocation{}, false
}

// take removes a pod from the pods here and returns it, or nil if there is none. The pod's
// namespaces stay.
func (p *pods) take(id string) *localPod {
	p.mu.Lock()
	defer p.mu.Unlock()
	local := p.local[id]
	if local != nil {
		p.remove(id)
	}
	return local
}

// attached returns the pod of a request, if it is connected and its address is in etcd.
func (p *pods) attached(request store.Request) (siteconf.Pod, bool) {
	pod, ready, published := p.connected(request)
	return pod, ready && published
}

// connected returns the pod of a request, and reports whether it is ready and whether its
// address is in etcd.
func (p *pods) connected(request store.Request) (pod siteconf.Pod, ready, published bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	local := p.local[request.Allocation().ID()]
	// A requeued job keeps its number, but may have other nodes.
	if local == nil || !local.ready || local.UID != request.UID || len(request.Nodes) > 0 && !store.SameNodes(local.Allocation, request.Nodes) {
		return siteconf.Pod{}, false, false
	}
	pod, _ = local.here(p.node).On(p.node)
	return pod, true, local.published == local.address
}

// problem returns the reason that a pod is not ready.
func (p *pods) problem(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if local := p.local[id]; local != nil && local.problem != nil {
		return local.problem
	}
	return fmt.Errorf("connect %s: it was released meanwhile", id)
}

// ofOwner returns the jobs in a network that have a pod here.
func (p *pods) ofOwner(owner string) []siteconf.Allocation {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []siteconf.Allocation
	for _, local := range p.local {
		if local.Owner() == owner {
			all = append(all, local.Allocation)
		}
	}
	return all
}

// count returns the number of pods here, of jobs and of sessions.
func (p *pods) count() (jobs, sessions int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, local := range p.local {
		if local.Login != "" {
			sessions++
		} else {
			jobs++
		}
	}
	return jobs, sessions
}

// owned returns a job with a ready pod here, if it is the user's or the user is root.
func (p *pods) owned(uid, job uint32) (siteconf.Allocation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	local := p.local[siteconf.Allocation{Job: job}.ID()]
	if local == nil || !local.ready || uid != 0 && local.UID != uid {
		return siteconf.Allocation{}, fmt.Errorf("name job %d: you have no such job on %s", job, p.node)
	}
	return local.Allocation, nil
}

// choose returns the ID of a user's job on this node: the job that adopted the session, since
// the session ends with it, or the newest job if adopter is 0.
func (p *pods) choose(uid, adopter uint32) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var chosen *localPod
	for _, local := range p.local {
		if local.UID != uid || !local.ready || local.Login != "" || adopter != 0 && local.Job != adopter {
			continue
		}
		if chosen == nil || local.After > chosen.After {
			chosen = local
		}
	}
	switch {
	case chosen != nil:
		return chosen.ID(), nil
	case adopter != 0:
		return "", fmt.Errorf("job %d, which this session belongs to, has no network yet, or not any more: try again, or enter it by srun --overlap --jobid=%[1]d --pty bash", adopter)
	}
	return "", fmt.Errorf("you have no job on %s", p.node)
}

// known returns the jobs and sessions in a network, by ID: all that etcd knows, and all with a
// pod here, even if etcd has lost them. The caller holds the mutex.
func (p *pods) known(owner string) map[string]siteconf.Allocation {
	all := map[string]siteconf.Allocation{}
	if f := p.watch.network(owner); f != nil {
		all = f.all()
	}
	for id, local := range p.local {
		if local.Owner() != owner {
			continue
		}
		a, known := all[id]
		if !known {
			a = local.Allocation
		}
		all[id] = a.With(p.node, local.address)
	}
	return all
}
