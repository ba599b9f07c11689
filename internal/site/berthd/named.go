package berthd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// named identifies the owner of additional names: an allocation and a node. With a node they
// are names of services of runs on that node. Without, the user gave them to the whole job.
type named struct {
	id    string
	after int64
	node  string
}

// given holds names as they are in etcd.
type given struct {
	// names is nil if etcd has none, and empty if the user has removed them.
	names []string
	// revision is the revision of etcd at their last change.
	revision int64
}

// namedPart is between the owner and the rest in the keys of names.
const namedPart = "named"

// namedEnd is the last part of these keys. A berthd without support for names takes the last
// part of a deleted key for the ID of a finished job. No job has this ID.
const namedEnd = "names"

func namedPrefix(a siteconf.Allocation) string {
	return networkPrefix(a.Owner()) + namedPart + "/" + a.ID() + "/"
}

// namedKey returns the key of the names of runs on a node, where each node has its own key.
// Without a node it returns the key of the names that the user gave the allocation.
func namedKey(a siteconf.Allocation, node string) string {
	if node != "" {
		node += "/"
	}
	return fmt.Sprintf("%s%d/%s%s", namedPrefix(a), a.After, node, namedEnd)
}

// namedOf parses a key of names.
func namedOf(key string) (named, bool) {
	if id, after, end, found := besideOf(key, namedPart); found {
		return named{id: id, after: after}, end == namedEnd
	}
	key, whole := strings.CutSuffix(key, "/"+namedEnd)
	id, after, node, found := besideOf(key, namedPart)
	return named{id, after, node}, whole && found && node != ""
}

// namesValue is the value of a key of names.
type namesValue struct {
	// Login is for a berthd without support for names. It takes every key below networks/ for
	// an allocation, and ignores this one as sessions on another host, without pods.
	Login string   `json:"login"`
	Names []string `json:"names"`
}

func decodeNames(kv *mvccpb.KeyValue) (given, error) {
	var v namesValue
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return given{}, fmt.Errorf("read names in etcd: %w", err)
	}
	return given{append([]string{}, v.Names...), kv.ModRevision}, nil
}

// SetNames replaces names of an allocation: the names of runs on a node, or without a node the
// names that the user gives it. They live as long as the allocation.
func (s *Store) SetNames(ctx context.Context, a siteconf.Allocation, node string, names []string) (given, error) {
	now, done, err := s.putNames(ctx, a, node, names)
	if err == nil && !done {
		err = fmt.Errorf("name %s: it was released meanwhile", a.ID())
	}
	return now, err
}

// putNames writes names if the allocation exists and the other conditions hold. It also writes
// an empty list, which tells removed names from names that etcd has lost.
func (s *Store) putNames(ctx context.Context, a siteconf.Allocation, node string, names []string, and ...clientv3.Cmp) (given, bool, error) {
	now := given{names: append([]string{}, names...)}
	value, err := json.Marshal(namesValue{Login: namedEnd, Names: now.names})
	if err != nil {
		return given{}, false, err
	}
	there := append(and, clientv3.Compare(clientv3.Version(podsKey(a)), ">", 0))
	done, err := s.client.Txn(ctx).If(there...).Then(clientv3.OpPut(namedKey(a, node), string(value))).Commit()
	if err != nil {
		return given{}, false, fmt.Errorf("name %s: %w", a.ID(), err)
	}
	now.revision = done.Header.Revision
	return now, done.Succeeded, nil
}

const (
	// freeNames bounds the changes of a job's names on a node without a pause. A job usually
	// names its services when it begins.
	freeNames = 3
	// namesPause is the minimum time between further changes in a network, on a node. etcd
	// keeps all changes for an hour and has room for 2 GB. A job of 1,000 nodes that changes
	// 1 KB on each node every 30 s writes some 130 MB in an hour.
	namesPause = 30 * time.Second
)

// Name replaces the names of a job, which must belong to the user and have a pod here.
func (d *Daemon) Name(ctx context.Context, uid, job uint32, text string) error {
	names, err := siteconf.ParseNames(text)
	if err != nil {
		return fmt.Errorf("name job %d: %w", job, err)
	}
	d.mu.Lock()
	local, err := d.ownJob(uid, job)
	if err != nil {
		d.mu.Unlock()
		return err
	}
	if local.named.names != nil && slices.Equal(local.named.names, names) {
		d.mu.Unlock()
		return nil
	}
	if wait := d.beforeRenaming(local); wait > 0 {
		d.mu.Unlock()
		return fmt.Errorf("name job %d: names have just changed on %s: try again in %s", job, d.node, wait.Truncate(time.Second)+time.Second)
	}
	a := local.Allocation
	d.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	now, err := d.store.SetNames(ctx, a, "", names)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	d.keepNames(named{id: a.ID(), after: a.After}, now)
	return nil
}

// ownJob returns a job with a pod here that the user may name. The caller holds the mutex.
func (d *Daemon) ownJob(uid, job uint32) (*localPod, error) {
	local := d.local[siteconf.Allocation{Job: job}.ID()]
	if local == nil || !local.ready || uid != 0 && local.UID != uid {
		return nil, fmt.Errorf("name job %d: you have no such job on %s", job, d.node)
	}
	return local, nil
}

// beforeRenaming returns the time until a job's names may change. If it is 0, the change is
// counted. The caller holds the mutex.
func (d *Daemon) beforeRenaming(local *localPod) time.Duration {
	if local.renamed < freeNames {
		local.renamed++
		return 0
	}
	f := d.users[local.Owner()]
	if f == nil {
		return namesPause
	}
	if wait := namesPause - time.Since(f.renamedAt); wait > 0 {
		return wait
	}
	f.renamedAt = time.Now()
	return 0
}

// keepNames remembers the names of a job here in case etcd loses them. It ignores an older
// revision, which may arrive after a change on another node.
func (d *Daemon) keepNames(which named, now given) {
	d.mu.Lock()
	defer d.mu.Unlock()
	local := d.local[which.id]
	if local == nil || local.After != which.after || which.node != "" && which.node != d.node {
		return
	}
	if kept := local.kept(which.node); now.revision > kept.revision {
		*kept = now
	}
}

// kept returns the remembered names of runs on this node, or without a node the names that the
// user gave the job.
func (l *localPod) kept(node string) *given {
	if node == "" {
		return &l.named
	}
	return &l.served
}

// rename restores names of jobs here that etcd has lost. Names in etcd always win over
// remembered ones, because revisions start at 1 again after etcd has lost everything.
func (d *Daemon) rename(ctx context.Context, mine []siteconf.Allocation, known listing) error {
	for _, a := range mine {
		for _, node := range []string{"", d.node} {
			if err := d.renameOne(ctx, a, node, known); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Daemon) renameOne(ctx context.Context, a siteconf.Allocation, node string, known listing) error {
	d.mu.Lock()
	local := d.local[a.ID()]
	if local == nil || local.After != a.After {
		d.mu.Unlock()
		return nil
	}
	kept := local.kept(node).names
	d.mu.Unlock()
	key := named{a.ID(), a.After, node}
	now, there := known.names[key]
	if !there {
		// If another node restores them first, the watch from this revision reports it.
		now = given{kept, known.revision}
	}
	if !there && kept != nil {
		again, done, err := d.store.putNames(ctx, a, node, kept, clientv3.Compare(clientv3.CreateRevision(namedKey(a, node)), "=", 0))
		if err != nil {
			return err
		}
		if done {
			now, known.names[key] = again, again
		}
	}
	d.mu.Lock()
	*local.kept(node) = now
	d.mu.Unlock()
	return nil
}
