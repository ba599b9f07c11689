package proof

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
)

// withoutMunge is the user's remedy on nodes without munge.
const withoutMunge = "without munge, let berth start the step (in a batch script or under salloc, call berth run without srun), " +
	"or give the step PMI (srun --mpi=pmi2 berth run ...), or name a folder of yours that all nodes see (--rendezvous-dir DIR)"

// Proof is the secret that authenticates the processes of one host to other
// hosts. If it is empty, they use munge.
type Proof struct {
	// Key is shared by all nodes of the step.
	Key []byte
	// Seed generates this host's key pair. With a Seed, Public holds the public
	// keys of all hosts, unless a folder does.
	Seed   []byte
	Public map[string]ed25519.PublicKey
}

func (p Proof) private() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(p.Seed) }

// PublicKey returns this host's public key, for the other hosts. The proof must have a
// Seed.
func (p Proof) PublicKey() ed25519.PublicKey { return p.private().Public().(ed25519.PublicKey) }

// Options holds the inputs of the choice between the ways to authenticate.
type Options struct {
	// Folder is the user's folder for the exchange of keys, or empty.
	Folder string
	// Wait bounds the wait for the other hosts.
	Wait   time.Duration
	Getenv func(string) string
	Log    *slog.Logger
}

// Find chooses how a host authenticates itself. All hosts of a step must
// choose the same method, each by itself. A key or a folder that all hosts have
// comes first. munge comes next, since a site has it on all nodes or on none. PMI
// comes last.
func Find(ctx context.Context, job slurm.Job, o Options) (Proof, error) {
	key, err := takeKey(ctx, o.Getenv, job.NodeName == job.Nodes[0])
	switch {
	case key != nil || err != nil:
		return Proof{Key: key}, err
	case o.Folder != "":
		seed, err := NewKey()
		return Proof{Seed: seed}, err
	}
	err = rendezvous.TryMunge(ctx)
	if err == nil {
		return Proof{}, nil
	}
	if !slurm.HasPMI(o.Getenv) {
		return Proof{}, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove node %s to the others: %w; %s", job.NodeName, err, withoutMunge))
	}
	o.Log.Debug("munge does not work here, so the keys of the nodes go over PMI: " + err.Error())
	limited, cancel := WaitFor(ctx, o.Wait)
	defer cancel()
	found, err := Exchange(limited, job, o.Getenv)
	if err != nil {
		err = exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove node %s to the others, without munge: %w", job.NodeName, err))
	}
	return found, err
}

// Exchange creates a key pair for this host and exchanges public keys over
// the step's PMI. Idle tasks take part without a key, because PMI waits for all
// tasks.
func Exchange(ctx context.Context, job slurm.Job, getenv func(string) string) (Proof, error) {
	pmi, err := slurm.OpenPMI(ctx, getenv)
	if err != nil {
		return Proof{}, err
	}
	defer pmi.Close(ctx)
	if !job.Acts() {
		_, err := pmi.Exchange(ctx, "", "", nil)
		return Proof{}, err
	}
	seed, err := NewKey()
	if err != nil {
		return Proof{}, err
	}
	found := Proof{Seed: seed, Public: map[string]ed25519.PublicKey{}}
	names := make([]string, len(job.Nodes))
	for i := range names {
		names[i] = "berth-" + strconv.Itoa(i)
	}
	own := slices.Index(job.Nodes, job.NodeName)
	if own < 0 {
		return Proof{}, fmt.Errorf("node %q is not one of the step's (%v)", job.NodeName, job.Nodes)
	}
	texts, err := pmi.Exchange(ctx, names[own], hex.EncodeToString(found.PublicKey()), names)
	if err != nil {
		return Proof{}, err
	}
	for i, text := range texts {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return Proof{}, fmt.Errorf("node %s has passed on %q over PMI, want a key", job.Nodes[i], text)
		}
		found.Public[job.Nodes[i]] = key
	}
	// Slurm does not authenticate the source of a key.
	if !found.PublicKey().Equal(found.Public[job.NodeName]) {
		return Proof{}, errors.New("somebody else has put a key for this node into the step's PMI")
	}
	return found, nil
}

// UsePMI reports whether the acting task of this node exchanges keys over PMI.
// Then the idle tasks must take part, too.
func UsePMI(ctx context.Context, job slurm.Job, folder string, getenv func(string) string) bool {
	return job.Place == slurm.PlaceTask && len(job.Nodes) > 1 && folder == "" &&
		slurm.HasPMI(getenv) && rendezvous.TryMunge(ctx) != nil
}

// Prover returns the prover that creates and checks the credentials of a step. hosts maps
// nodes to hosts. If the hosts exchange their keys in a folder, exchange is that folder,
// and nil otherwise.
func (p Proof) Prover(step rendezvous.Step, folder string, hosts map[string]string) (prover rendezvous.Prover, exchange *rendezvous.Folder, err error) {
	switch {
	case p.Key != nil:
		prover, err = rendezvous.NewPreShared(p.Key)
		return prover, nil, err
	case p.Seed == nil:
		prover, err = rendezvous.NewMunge("")
		return prover, nil, err
	}
	find := func(_ context.Context, host string) (ed25519.PublicKey, error) { return p.Public[host], nil } //nolint:unparam // a folder's can fail
	if p.Public == nil {
		if exchange, err = rendezvous.OpenFolder(folder, step); err != nil {
			return nil, nil, err
		}
		find = exchange.Key
	}
	prover = rendezvous.NewSigned(p.private(), func(ctx context.Context, node string) (ed25519.PublicKey, error) {
		host, known := hosts[node]
		if !known {
			return nil, errors.New("it is not one of the step's")
		}
		return find(ctx, host)
	})
	return prover, exchange, nil
}

const keySize = 32

// NewKey returns a random key.
func NewKey() ([]byte, error) {
	key := make([]byte, keySize)
	_, err := rand.Read(key)
	return key, err
}

// WaitFor returns a context that bounds the wait for other nodes. Its cause names the
// option that changes the bound.
func WaitFor(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, wait, fmt.Errorf("%s is the longest wait; --node-wait sets another", wait))
}
