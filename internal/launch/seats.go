package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/nodeloss"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/proof"
	"berth.dev/berth/internal/node/sandbox"
)

// checkSeats returns an error if nodes of other jobs could not find this cluster.
func checkSeats(spec cluster.Spec, getenv func(string) string) error {
	if spec.Seats > 0 && jobOf(getenv) == persistent.Local {
		return exitcode.Wrap(exitcode.Config, errors.New("--elastic: nodes of other jobs find the cluster by its Slurm job, and this process is in none; call 'berth up' in an allocation"))
	}
	return nil
}

// proveSeats finds the proof of the cluster for nodes of other jobs, if it has seats.
func (r *run) proveSeats(ctx context.Context) (err error) {
	if r.Spec.Seats == 0 {
		return nil
	}
	r.seatProver, r.forgetSeatKey, err = proof.OfCluster(ctx, r.Spec.Network.Folder, r.joinStep())
	return err
}

// joinStep identifies this cluster to nodes of other jobs.
func (r *run) joinStep() rendezvous.Step {
	own := r.members.Step()
	return joinStep(own.Cluster, own.Job, own.Step, own.Attempt)
}

// openSeats lets nodes of other jobs join, if the cluster has seats.
func (r *run) openSeats(ctx context.Context) error {
	if r.Spec.Seats == 0 {
		return nil
	}
	job := r.allocation.Job
	config := members.SeatsConfig{
		Spec: specForPilots(r.Spec), UID: os.Getuid(), Join: r.joinStep(), Prover: r.seatProver,
		Plan: func(seat int, name string, offer cluster.Offer) (cluster.Plan, map[string]sandbox.File, error) {
			plan, err := cluster.DesignSeat(r.Spec, r.offers, seat, name, offer)
			if err != nil {
				return plan, nil, err
			}
			plan.PodSuperPacket = r.plan.PodSuperPacket
			files, err := r.identities.Join(plan)
			return plan, files, err
		},
		Jobs:     func(ctx context.Context) ([]slurm.Queued, error) { return slurm.Queue(ctx, os.Getuid(), slurm.AskLong) },
		Reporter: seatReporter{nodeloss.NewReporter(r.work.client.Dynamic()), r.work.client, r.Log},
		Returns:  r.nodesReturn(), Seated: r.saver.saveSoon,
	}
	if r.returning != nil {
		config.Expected = r.returning.Taken
	}
	var err error
	if config.Addresses, err = hostnet.AddressBook(job, r.Getenv); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	return r.monitor.OpenSeats(ctx, config)
}

// closeSeats removes the key for nodes of other jobs.
func (r *run) closeSeats() {
	if r.forgetSeatKey != nil {
		r.forgetSeatKey()
	}
}

// seatReporter reports to the API server what becomes of nodes of other jobs.
type seatReporter struct {
	*nodeloss.Reporter
	client *workload.Client
	log    *slog.Logger
}

// Drain implements members.SeatReporter.
func (s seatReporter) Drain(ctx context.Context, node string, grace time.Duration) error {
	_, err := s.client.DrainNode(ctx, s.log, node, grace)
	return err
}

// keepAddresses has the plan take the addresses of the previous head's cluster.
func (r *run) keepAddresses() {
	if c := r.saver.previous(r.joinStep()); c != nil {
		r.Spec.Kept = c.Blocks
	}
}

// takeUp decides whether nodes of other jobs return to this start of the cluster, and takes up the
// keys that they have.
func (r *run) takeUp() error {
	blocks, err := cluster.BlocksOf(r.Spec, r.offers)
	if err != nil {
		return err
	}
	r.blocks = blocks
	c := r.saver.previous(r.joinStep())
	if c == nil {
		return nil
	}
	if err := c.canReturn(r.plan, blocks); err != nil {
		r.Log.Warn(fmt.Sprintf("%d nodes of other jobs cannot return, and their pods start again: %v", len(c.Taken), err))
		return nil
	}
	r.members.KeepKey(c.Network)
	r.returning = c
	r.Log.Info(fmt.Sprintf("the cluster goes on: %d nodes of other jobs may return", len(c.Taken)))
	return nil
}

// trust returns the keys that nodes which return trust, or nil if there are none.
func (r *run) trust() *identity.Trust {
	if r.returning == nil {
		return nil
	}
	return &r.returning.Trust
}

// nodesReturn reports whether nodes of other jobs can return to a next head of this cluster.
func (r *run) nodesReturn() bool {
	return r.Spec.Seats > 0 && r.saver != nil && r.Spec.StateSecrets != cluster.OmitSecrets
}

// continuity returns what the next head needs.
func (r *run) continuity() *continuity {
	_, key := r.members.Places().Self()
	step := r.joinStep()
	return &continuity{
		Cluster: step.Cluster, Job: step.Job, Trust: r.identities.Trust, Network: key,
		Blocks: r.blocks, FirstSeat: firstSeat(r.plan), Taken: r.members.Seats(),
	}
}

// isOfOtherJob reports whether a node belongs to another job than the cluster.
func (r *run) isOfOtherJob(node string) bool {
	return !slices.ContainsFunc(r.plan.Members, func(member cluster.Member) bool { return member.Name == node })
}
