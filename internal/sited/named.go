package sited

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site"
)

// named is what has names beside those of its pods: an allocation.
type named struct {
	id    string
	after int64
}

// namedPart is between the owner and the rest in the keys of names.
const namedPart = "named"

func namedPrefix(a site.Allocation) string {
	return networkPrefix(a.Owner()) + namedPart + "/" + a.ID() + "/"
}

func namedKey(a site.Allocation) string { return fmt.Sprintf("%s%d", namedPrefix(a), a.After) }

// namedOf reads such a key, by the position of what is between slashes.
func namedOf(key string) (named, bool) {
	rest, found := strings.CutPrefix(key, networksKey)
	parts := strings.Split(rest, "/")
	if !found || len(parts) != 4 || parts[1] != namedPart {
		return named{}, false
	}
	after, err := strconv.ParseInt(parts[3], 10, 64)
	return named{parts[2], after}, err == nil
}

func decodeNames(value []byte) ([]string, error) {
	var names []string
	if err := json.Unmarshal(value, &names); err != nil {
		return nil, fmt.Errorf("read names in etcd: %w", err)
	}
	return names, nil
}

// SetNames gives an allocation these names and no others, as long as it lives.
func (s *Store) SetNames(ctx context.Context, a site.Allocation, names []string) error {
	value, err := json.Marshal(names)
	if err != nil {
		return err
	}
	op := clientv3.OpPut(namedKey(a), string(value))
	if len(names) == 0 {
		op = clientv3.OpDelete(namedKey(a))
	}
	done, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(podsKey(a)), ">", 0)).Then(op).Commit()
	if err != nil {
		return fmt.Errorf("name %s: %w", a.ID(), err)
	}
	if !done.Succeeded {
		return fmt.Errorf("name %s: it was released meanwhile", a.ID())
	}
	return nil
}

// namesPause is what has to pass between two changes of a job's names: each is written
// to the disks of etcd, and anybody may ask for one.
const namesPause = time.Second

// Name gives a job these names and no others. It has to be the asker's own, on this node.
func (d *Daemon) Name(ctx context.Context, uid, job uint32, text string) error {
	names, err := site.ParseNames(text)
	if err != nil {
		return fmt.Errorf("name job %d: %w", job, err)
	}
	d.mu.Lock()
	local := d.local[site.Allocation{Job: job}.ID()]
	if local == nil || !local.ready || uid != 0 && local.UID != uid {
		d.mu.Unlock()
		return fmt.Errorf("name job %d: you have no such job on %s", job, d.node)
	}
	if local.named != nil && slices.Equal(local.named, names) {
		d.mu.Unlock()
		return nil
	}
	if time.Since(local.namedAt) < namesPause {
		d.mu.Unlock()
		return fmt.Errorf("name job %d: its names have just changed: try again in a second", job)
	}
	local.namedAt = time.Now()
	a := local.Allocation
	d.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	if err := d.store.SetNames(ctx, a, names); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	d.keepNames(named{a.ID(), a.After}, names)
	return nil
}

// keepNames keeps what etcd has of a job here, should it lose that.
func (d *Daemon) keepNames(which named, names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if local := d.local[which.id]; local != nil && local.After == which.after {
		local.named = names
	}
}

// rename gives jobs here their names again, where etcd has lost them.
func (d *Daemon) rename(ctx context.Context, mine []site.Allocation, known listing) error {
	for _, a := range mine {
		d.mu.Lock()
		local := d.local[a.ID()]
		var names []string
		if local != nil && local.After == a.After {
			names = local.named
		}
		d.mu.Unlock()
		key := named{a.ID(), a.After}
		if there := known.names[key]; len(there) > 0 {
			d.keepNames(key, there)
			continue
		}
		if len(names) == 0 {
			continue
		}
		if err := d.store.SetNames(ctx, a, names); err != nil {
			return err
		}
		known.names[key] = names
	}
	return nil
}
