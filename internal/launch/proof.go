package launch

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
)

// withoutMunge is the user's remedy on nodes without munge.
const withoutMunge = "without munge, let berth start the step (in a batch script or under salloc, call berth run without srun), " +
	"or give the step PMI (srun --mpi=pmi2 berth run ...), or name a folder of yours that all nodes see (--rendezvous-dir DIR)"

// proof is the secret that authenticates the processes of one host to other
// hosts. If it is empty, they use munge.
type proof struct {
	// Key is shared by all nodes of the step.
	Key []byte
	// Seed generates this host's key pair. With a Seed, Public holds the public
	// keys of all hosts, unless a folder does.
	Seed   []byte
	Public map[string]ed25519.PublicKey
}

func (p proof) private() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(p.Seed) }
func (p proof) public() ed25519.PublicKey   { return p.private().Public().(ed25519.PublicKey) }

// findProof chooses how a host authenticates itself. All hosts of a step must
// choose the same method, each by itself. A key or a folder that all hosts have
// comes first. munge comes next, since a site has it on all nodes or on none. PMI
// comes last.
func findProof(ctx context.Context, job slurm.Job, options Options) (proof, error) {
	key, err := takeKey(ctx, options.Getenv, job.NodeName == job.Nodes[0])
	switch {
	case key != nil || err != nil:
		return proof{Key: key}, err
	case options.Spec.Network.Folder != "":
		seed, err := newKey()
		return proof{Seed: seed}, err
	}
	err = tryMunge(ctx)
	if err == nil {
		return proof{}, nil
	}
	if !slurm.HasPMI(options.Getenv) {
		return proof{}, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove node %s to the others: %w; %s", job.NodeName, err, withoutMunge))
	}
	options.Log.Debug("munge does not work here, so the keys of the nodes go over PMI: " + err.Error())
	limited, cancel := waitFor(ctx, cmp.Or(options.Spec.NodeWait, gatherLimit))
	defer cancel()
	found, err := exchangeKeys(limited, job, options.Getenv)
	if err != nil {
		err = exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove node %s to the others, without munge: %w", job.NodeName, err))
	}
	return found, err
}

// tryMunge checks early that munge creates credentials.
func tryMunge(ctx context.Context) error {
	munge, err := rendezvous.NewMunge("")
	if err == nil {
		_, err = munge.Prove(ctx, rendezvous.Claim{})
	}
	return err
}

// exchangeKeys creates a key pair for this host and exchanges public keys over
// the step's PMI. Idle tasks take part without a key, because PMI waits for all
// tasks.
func exchangeKeys(ctx context.Context, job slurm.Job, getenv func(string) string) (proof, error) {
	pmi, err := slurm.OpenPMI(ctx, getenv)
	if err != nil {
		return proof{}, err
	}
	defer pmi.Close(ctx)
	if !job.Acts() {
		_, err := pmi.Exchange(ctx, "", "", nil)
		return proof{}, err
	}
	seed, err := newKey()
	if err != nil {
		return proof{}, err
	}
	found := proof{Seed: seed, Public: map[string]ed25519.PublicKey{}}
	names := make([]string, len(job.Nodes))
	for i := range names {
		names[i] = "berth-" + strconv.Itoa(i)
	}
	own := slices.Index(job.Nodes, job.NodeName)
	if own < 0 {
		return proof{}, fmt.Errorf("node %q is not one of the step's (%v)", job.NodeName, job.Nodes)
	}
	texts, err := pmi.Exchange(ctx, names[own], hex.EncodeToString(found.public()), names)
	if err != nil {
		return proof{}, err
	}
	for i, text := range texts {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return proof{}, fmt.Errorf("node %s has passed on %q over PMI, want a key", job.Nodes[i], text)
		}
		found.Public[job.Nodes[i]] = key
	}
	// Slurm does not authenticate the source of a key.
	if !found.public().Equal(found.Public[job.NodeName]) {
		return proof{}, errors.New("somebody else has put a key for this node into the step's PMI")
	}
	return found, nil
}

// usePMI reports whether the acting task of this node exchanges keys over PMI.
// Then the idle tasks must take part, too.
func usePMI(ctx context.Context, job slurm.Job, options Options) bool {
	return job.Place == slurm.PlaceTask && len(job.Nodes) > 1 && options.Spec.Network.Folder == "" &&
		slurm.HasPMI(options.Getenv) && tryMunge(ctx) != nil
}

// prover returns what creates and checks credentials. hosts maps nodes to hosts.
func (m *members) prover(p proof, folder string, hosts map[string]string) (rendezvous.Prover, error) {
	switch {
	case p.Key != nil:
		return rendezvous.NewPreShared(p.Key)
	case p.Seed == nil:
		return rendezvous.NewMunge("")
	}
	find := func(_ context.Context, host string) (ed25519.PublicKey, error) { return p.Public[host], nil } //nolint:unparam // a folder's can fail
	if p.Public == nil {
		var err error
		if m.folder, err = rendezvous.OpenFolder(folder, m.config.Step); err != nil {
			return nil, err
		}
		find = m.folder.Key
	}
	return rendezvous.NewSigned(p.private(), func(ctx context.Context, node string) (ed25519.PublicKey, error) {
		host, known := hosts[node]
		if !known {
			return nil, errors.New("it is not one of the step's")
		}
		return find(ctx, host)
	}), nil
}

// forgetKeys removes this node's key from the folder. The head removes all keys.
func (m *members) forgetKeys() {
	switch {
	case m.folder == nil:
		return
	case m.leads():
		_ = m.folder.Clear()
	default:
		m.folder.Withdraw(m.config.Node)
	}
	m.folder.Close()
}
