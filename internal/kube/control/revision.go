package control

import (
	"errors"
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/savedstate"
)

// revisionGap is more than the revisions that a cluster makes between its last save and its
// end. It is the number that etcd recommends for etcdutl snapshot restore --bump-revision.
const revisionGap = 1_000_000_000

// beginAfter makes a new store begin after the revisions of an earlier cluster if nodes of other
// jobs return to it. Their programs, and pods there, watch objects since a revision of that
// cluster. In a store that counts from 1 again, such a watch would miss all changes until the
// store has as many revisions. The store counts as compacted up to its first revision, so the
// API server tells these clients to list all again.
func beginAfter(configuration config.ServerConfig, plan cluster.Plan) error {
	file, err := os.Open(plan.Paths.Restore())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the state to restore: %w", err)
	}
	defer file.Close()
	facts, err := savedstate.ReadFacts(file)
	if err != nil || !facts.Returning {
		return err
	}
	path := configuration.BackendPath()
	if _, err := os.Stat(path); err == nil {
		return nil // an earlier process has made it
	}
	if err := os.MkdirAll(configuration.SnapDir(), 0o700); err != nil {
		return err
	}
	// The same two keys that a compaction writes. mvcc takes the larger one as its revision.
	made := backend.NewDefaultBackend(configuration.Logger, path)
	tx := made.BatchTx()
	schema.CreateMetaBucket(tx)
	tx.LockOutsideApply()
	mvcc.UnsafeSetScheduledCompact(tx, facts.Revision+revisionGap)
	mvcc.UnsafeSetFinishedCompact(tx, facts.Revision+revisionGap)
	tx.Unlock()
	made.ForceCommit()
	return made.Close()
}
