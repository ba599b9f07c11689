package launch

import (
	"context"
	"errors"
	"os"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/nodeloss"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/hostnet"
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
		Reporter: seatReporter{nodeloss.NewReporter(r.work.client.Dynamic()), r.work.client},
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
}

// Drain implements members.SeatReporter.
func (s seatReporter) Drain(ctx context.Context, node string, grace time.Duration) error {
	_, err := s.client.DrainNode(ctx, node, grace)
	return err
}
