package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/objects"
	"berth.dev/berth/internal/kube/savedstate"
)

// savePage is the number of objects in one read of the store. Writers do not
// wait for it: a read at one revision is a snapshot.
const savePage = 1000

// serveState sends the objects that outlive this cluster to every client of the
// listener, until the listener is closed.
func (r *role) serveState(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // it was closed
		}
		go func() {
			defer conn.Close()
			if err := r.sendState(ctx, conn); err != nil && ctx.Err() == nil {
				r.opts.Log.Error("the state of the cluster cannot be read", "error", err)
			}
		}()
	}
}

func (r *role) sendState(ctx context.Context, conn net.Conn) error {
	select {
	case <-r.writable: // before, the store may contain only a part of a restored cluster
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	all, revision, err := r.store.read(ctx)
	if err != nil {
		return err
	}
	lasting, err := objects.Lasting(all, staying(r.plan))
	if err != nil {
		return err
	}
	facts := savedstate.Facts{Kubernetes: cluster.KubernetesVersion, Services: strings.Split(serviceRanges(r.plan), ","), Revision: revision}
	return savedstate.Write(conn, facts, lasting)
}

// staying returns a function that reports whether a node may outlive the head, or nil if no
// node can. Nodes of other jobs can.
func staying(plan cluster.Plan) func(node string) bool {
	if plan.Seats == 0 {
		return nil
	}
	return func(node string) bool {
		return !slices.ContainsFunc(plan.Members, func(member cluster.Member) bool { return member.Name == node })
	}
}

// read returns all objects at one revision of the store, and the revision.
func (s *store) read(ctx context.Context) (all []savedstate.Record, revision int64, err error) {
	client, err := s.client()
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	for key := storagePrefix; ; {
		page, err := client.Get(ctx, key, clientv3.WithRange(clientv3.GetPrefixRangeEnd(storagePrefix)), clientv3.WithLimit(savePage), clientv3.WithRev(revision))
		if err != nil {
			return nil, 0, fmt.Errorf("read all objects from etcd: %w", err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			all = append(all, savedstate.Record{Key: strings.TrimPrefix(string(kv.Key), storagePrefix), Value: kv.Value})
		}
		if !page.More {
			return all, revision, nil
		}
		key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// restored returns the objects of an earlier cluster, and notices about them for the user.
// It returns none if there is no state to restore.
func restored(plan cluster.Plan) ([]seedObject, []string, error) {
	file, err := os.Open(plan.Paths.Restore())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the state to restore: %w", err)
	}
	defer file.Close()
	facts, records, err := savedstate.Read(file)
	if err != nil {
		return nil, nil, err
	}
	if !facts.Returning {
		if records, err = objects.Lasting(records, nil); err != nil {
			return nil, nil, fmt.Errorf("restore the cluster: %w", err)
		}
	}
	from, err := parseRanges(facts.Services)
	if err != nil {
		return nil, nil, err
	}
	to, err := parseRanges(strings.Split(serviceRanges(plan), ","))
	if err != nil {
		return nil, nil, err
	}
	records, notices, err := objects.Moved(records, from, to)
	if err != nil {
		return nil, nil, fmt.Errorf("restore the cluster: %w", err)
	}
	var found []seedObject
	for _, record := range records {
		found = append(found, seedObject{storagePrefix + record.Key, record.Value})
	}
	return found, notices, nil
}

func parseRanges(texts []string) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	for _, text := range texts {
		parsed, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read the ranges of Services: %w", err)
		}
		ranges = append(ranges, parsed)
	}
	return ranges, nil
}

// merge adds the restored objects to the seed. If both have an object, the seed's takes
// precedence, except for namespaces and service accounts, which users change.
func merge(seed, restored []seedObject) []seedObject {
	position := map[string]int{}
	for i, object := range seed {
		position[object.key] = i
	}
	for _, object := range restored {
		i, seeded := position[object.key]
		switch {
		case !seeded:
			seed = append(seed, object)
		case strings.HasPrefix(object.key, storagePrefix+"namespaces/"), strings.HasPrefix(object.key, storagePrefix+"serviceaccounts/"):
			seed[i] = object
		}
	}
	return seed
}
