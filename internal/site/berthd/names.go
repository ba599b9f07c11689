package berthd

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// nameOwner identifies the owner of additional names: an allocation and a node. With a node they
// are names of services of runs on that node. Without, the user gave them to the whole job.
type nameOwner struct {
	id    string
	after int64
	node  string
}

// givenNames holds names as they are in etcd.
type givenNames struct {
	// names is nil if etcd has none, and empty if the user has removed them.
	names []string
	// revision is the revision of etcd at their last change.
	revision int64
}

// namesPart is between the owner and the rest in the keys of names.
const namesPart = "named"

// namesEnd is the last part of these keys. A berthd without support for names takes the last
// part of a deleted key for the ID of a finished job. No job has this ID.
const namesEnd = "names"

func namesPrefix(a siteconf.Allocation) string {
	return networkPrefix(a.Owner()) + namesPart + "/" + a.ID() + "/"
}

// namesKey returns the key of the names of runs on a node, where each node has its own key.
// Without a node it returns the key of the names that the user gave the allocation.
func namesKey(a siteconf.Allocation, node string) string {
	if node != "" {
		node += "/"
	}
	return fmt.Sprintf("%s%d/%s%s", namesPrefix(a), a.After, node, namesEnd)
}

// parseNamesKey parses a key of names.
func parseNamesKey(key string) (nameOwner, bool) {
	if id, after, end, found := besideOf(key, namesPart); found {
		return nameOwner{id: id, after: after}, end == namesEnd
	}
	key, whole := strings.CutSuffix(key, "/"+namesEnd)
	id, after, node, found := besideOf(key, namesPart)
	return nameOwner{id, after, node}, whole && found && node != ""
}

// namesValue is the value of a key of names.
type namesValue struct {
	// Login is for a berthd without support for names. It takes every key below networks/ for
	// an allocation, and ignores this one as sessions on another host, without pods.
	Login string   `json:"login"`
	Names []string `json:"names"`
}

func decodeNames(kv *mvccpb.KeyValue) (givenNames, error) {
	var v namesValue
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return givenNames{}, fmt.Errorf("read names in etcd: %w", err)
	}
	return givenNames{append([]string{}, v.Names...), kv.ModRevision}, nil
}

// SetNames replaces names of an allocation: the names of runs on a node, or without a node the
// names that the user gives it. They live as long as the allocation.
func (s *Store) SetNames(ctx context.Context, a siteconf.Allocation, node string, names []string) (givenNames, error) {
	now, done, err := s.putNames(ctx, a, node, names)
	if err == nil && !done {
		err = errReleased(a)
	}
	return now, err
}

// putNames writes names if the allocation exists and the other conditions hold. It also writes
// an empty list, which tells removed names from names that etcd has lost.
func (s *Store) putNames(ctx context.Context, a siteconf.Allocation, node string, names []string, and ...clientv3.Cmp) (givenNames, bool, error) {
	now := givenNames{names: append([]string{}, names...)}
	value, err := json.Marshal(namesValue{Login: namesEnd, Names: now.names})
	if err != nil {
		return givenNames{}, false, err
	}
	there := append(and, clientv3.Compare(clientv3.Version(podsKey(a)), ">", 0))
	done, err := s.client.Txn(ctx).If(there...).Then(clientv3.OpPut(namesKey(a, node), string(value))).Commit()
	if err != nil {
		return givenNames{}, false, fmt.Errorf("name %s: %w", a.ID(), err)
	}
	now.revision = done.Header.Revision
	return now, done.Succeeded, nil
}

func errReleased(a siteconf.Allocation) error {
	return fmt.Errorf("name %s: it was released meanwhile", a.ID())
}
