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

// named is what has names beside those of its pods: an allocation, and the node on which
// runs serve something by them. Those that a user has given the whole have none.
type named struct {
	id    string
	after int64
	node  string
}

// given are names as etcd has them.
type given struct {
	// names are nil where etcd has none, and empty where they were taken back.
	names []string
	// revision of etcd is that of their last change.
	revision int64
}

// namedPart is between the owner and the rest in the keys of names.
const namedPart = "named"

// namedEnd ends them. A berthd of before there were names takes the last part of a key
// that is deleted for what is over, and no job is called so.
const namedEnd = "names"

func namedPrefix(a siteconf.Allocation) string {
	return networkPrefix(a.Owner()) + namedPart + "/" + a.ID() + "/"
}

// namedKey is that of the names that an allocation has by runs on a node, a key of each
// node's own, or without a node of those that it was given.
func namedKey(a siteconf.Allocation, node string) string {
	if node != "" {
		node += "/"
	}
	return fmt.Sprintf("%s%d/%s%s", namedPrefix(a), a.After, node, namedEnd)
}

// namedOf reads such a key.
func namedOf(key string) (named, bool) {
	if id, after, end, found := besideOf(key, namedPart); found {
		return named{id: id, after: after}, end == namedEnd
	}
	key, whole := strings.CutSuffix(key, "/"+namedEnd)
	id, after, node, found := besideOf(key, namedPart)
	return named{id, after, node}, whole && found && node != ""
}

// namesValue is what etcd has of names.
type namesValue struct {
	// Login is read by a berthd of before there were names. To it all below networks/ are
	// allocations, and this is one of sessions somewhere, without pods, that it leaves alone.
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

// SetNames gives an allocation these names and no others, as long as it lives: all that it
// has by runs on a node, or without a node those that its user gives it himself.
func (s *Store) SetNames(ctx context.Context, a siteconf.Allocation, node string, names []string) (given, error) {
	now, done, err := s.putNames(ctx, a, node, names)
	if err == nil && !done {
		err = fmt.Errorf("name %s: it was released meanwhile", a.ID())
	}
	return now, err
}

// putNames writes them if there is the allocation, and all is so that is asked for. No names
// are written as well: that they were taken back is not that etcd has lost them.
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
	// freeNames is how often a job's names may change on a node without a pause: as it
	// begins, it says what it serves.
	freeNames = 3
	// namesPause is what has to pass between other changes in a network, on a node. All are
	// kept by etcd for an hour, and there is room for 2 GB: a job of 1,000 nodes with a change
	// of 1 KB on each, every 30 s, writes some 130 MB in that time.
	namesPause = 30 * time.Second
)

// Name gives a job these names and no others. It has to be the asker's own, on this node.
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

// ownJob is a job with a pod here that a user may name. The caller holds the mutex.
func (d *Daemon) ownJob(uid, job uint32) (*localPod, error) {
	local := d.local[siteconf.Allocation{Job: job}.ID()]
	if local == nil || !local.ready || uid != 0 && local.UID != uid {
		return nil, fmt.Errorf("name job %d: you have no such job on %s", job, d.node)
	}
	return local, nil
}

// beforeRenaming is how long a job's names may not yet be changed, and counts the change
// if they may. The caller holds the mutex.
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

// keepNames keeps what etcd has of a job here, should it lose that. What comes late, as
// somebody has changed them on another node meanwhile, is of no use.
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

// kept are the names of a job that are kept here: those that runs on this node have, or
// without a node those that it was given.
func (l *localPod) kept(node string) *given {
	if node == "" {
		return &l.named
	}
	return &l.served
}

// rename gives jobs here their names again, where etcd has lost them. What etcd has counts,
// whatever was kept here: its revisions begin anew when it has lost all.
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
		// Should another node be the first to give them, the watch from here on tells.
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
