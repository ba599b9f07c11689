package proof

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
)

// withoutMungeJoin is the user's remedy where nodes of other jobs cannot use munge.
const withoutMungeJoin = "without munge, name a folder of yours that all hosts see, for 'berth up' and 'berth join' (--rendezvous-dir DIR)"

// OfCluster returns the prover of a cluster that nodes of other jobs may join. The caller
// must call remove at the end.
func OfCluster(ctx context.Context, folder string, join rendezvous.Step) (prover rendezvous.Prover, remove func(), err error) {
	if folder == "" {
		prover, err = withMunge(ctx)
		return prover, func() {}, err
	}
	key, remove, err := rendezvous.WriteKey(folder, join)
	if err != nil {
		return nil, nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	prover, err = rendezvous.NewPreShared(key)
	return prover, remove, err
}

// OfPilot returns the prover of a node of another job. With a folder, it waits for the key
// of the cluster until ctx ends.
func OfPilot(ctx context.Context, folder string, join rendezvous.Step) (rendezvous.Prover, error) {
	if folder == "" {
		return withMunge(ctx)
	}
	key, err := rendezvous.ReadKey(ctx, folder, join)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	return rendezvous.NewPreShared(key)
}

func withMunge(ctx context.Context) (rendezvous.Prover, error) {
	err := rendezvous.TryMunge(ctx)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove nodes of other jobs: %w; %s", err, withoutMungeJoin))
	}
	return rendezvous.NewMunge("")
}
