package launch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/proof"
)

// lookAgain is the time between questions to Slurm for a cluster that is not up yet. A node that
// waits for the next head asks less and less often, up to lookSeldom on average.
const lookAgain, lookSeldom = 2 * time.Second, 10 * time.Second

// proofLimit bounds the wait for the key of the next head, where there is no munge.
const proofLimit = 15 * time.Second

// retireTime is the time that the head needs, at most, to delete a node whose pods have ended.
const retireTime = 2 * time.Second

// pilotGraceShare limits --grace to a quarter of the job's time: otherwise the node of a short job
// would leave as soon as it joins.
const pilotGraceShare = 4

// joinWait is the default time that a node waits for the cluster that it joins.
const joinWait = time.Minute

// checkJoin returns an error if this process cannot be a node of another job's cluster.
func checkJoin(target string, job slurm.Job, inJob bool) error {
	switch {
	case !inJob:
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("join the cluster of job %s: this process is in no job; submit one: sbatch --wrap 'exec berth join %[1]s'", target))
	case target == job.ID:
		return exitcode.Wrap(exitcode.Usage, fmt.Errorf("join the cluster of job %s: this is the same job, whose nodes belong to the cluster already", target))
	}
	return nil
}

// meetCluster connects to the head of the cluster that this node joins, and sets the options
// of the cluster.
func meetCluster(ctx context.Context, options *Options, job slurm.Job) (*members.Members, error) {
	local := options.Spec
	wait := local.NodeWait
	if wait == 0 {
		wait = joinWait
	}
	limited, cancel := proof.WaitFor(ctx, wait)
	defer cancel()
	step, err := awaitCluster(limited, local.Join)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("join the cluster of job %s: %w", local.Join, err))
	}
	config, err := pilotConfig(limited, *options, job, step)
	if err != nil {
		return nil, err
	}
	all := members.NewPilot(config)
	if err := all.UseInterface(local.Network.Interface); err != nil {
		return nil, exitcode.Wrap(exitcode.Config, err)
	}
	spec, err := all.Meet(ctx)
	if err != nil {
		return nil, err
	}
	options.Spec = specOfPilot(spec, local)
	return all, nil
}

// pilotConfig returns the configuration of this node for the head in a step.
func pilotConfig(ctx context.Context, options Options, job slurm.Job, step slurm.NamedStep) (config members.PilotConfig, err error) {
	local := options.Spec
	config = members.PilotConfig{
		Join: joinStep(job.Cluster, step.Job, step.Step, step.Restarts), Head: step.Head,
		Job: job.ID, Host: job.NodeName, Ports: rendezvous.DefaultPorts(), Wait: local.NodeWait, HeadWait: local.HeadWait, Log: options.Log,
	}
	if local.Network.Ports != "" {
		if config.Ports, err = rendezvous.ParsePortRange(local.Network.Ports); err != nil {
			return config, exitcode.Wrap(exitcode.Usage, err)
		}
	}
	if config.Addresses, err = hostnet.AddressBook(job, options.Getenv); err != nil {
		return config, exitcode.Wrap(exitcode.Unavailable, err)
	}
	config.Again = func(ctx context.Context) (members.PilotConfig, error) {
		step, err := awaitNextHead(ctx, local.Join, slurm.AskLong)
		if err != nil {
			return members.PilotConfig{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, proofLimit)
		defer cancel()
		return pilotConfig(ctx, options, job, step)
	}
	config.Prover, err = proof.OfPilot(ctx, local.Network.Folder, config.Join)
	return config, err
}

// awaitNextHead waits until a job whose cluster has no head has one. It returns an error that wraps
// members.ErrClusterOver when the job has ended and does not start again. The pauses between
// its questions grow, because many nodes ask.
func awaitNextHead(ctx context.Context, job string, ask slurm.Ask) (slurm.NamedStep, error) {
	for pause := lookAgain; ; pause = min(pause*3/2, lookSeldom) {
		step, ok, err := slurm.FindStep(ctx, job, upStep, ask)
		if ok {
			return step, nil
		}
		queued, known, asked := slurm.QueuedJob(ctx, job, ask)
		switch {
		case asked == nil && !known:
			return slurm.NamedStep{}, fmt.Errorf("job %s is not in Slurm's queue any more: %w", job, members.ErrClusterOver)
		case asked == nil && batch.Ended(queued.State):
			return slurm.NamedStep{}, fmt.Errorf("job %s is %s: %w", job, queued.State, members.ErrClusterOver)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return slurm.NamedStep{}, errors.Join(context.Cause(ctx), err, asked)
		}
	}
}

// joinStep identifies a cluster to nodes of other jobs.
func joinStep(name, job string, step, attempt int) rendezvous.Step {
	return rendezvous.Step{Cluster: name, Job: job, Step: step, Attempt: attempt, Joining: true}
}

// awaitCluster waits until a job has a cluster of berth up. It does not wait for a job that has
// ended: pilots may start after the cluster that has submitted them was killed.
func awaitCluster(ctx context.Context, job string) (slurm.NamedStep, error) {
	for {
		step, ok, err := slurm.FindStep(ctx, job, upStep, slurm.AskLong)
		if ok {
			return step, nil
		}
		if err == nil {
			err = fmt.Errorf("job %s has no cluster of 'berth up'", job)
		}
		if queued, known, asked := slurm.QueuedJob(ctx, job, slurm.AskLong); asked == nil && (!known || batch.Ended(queued.State)) {
			return slurm.NamedStep{}, errors.New("the job has ended, or Slurm does not know it: 'squeue --me' lists your jobs")
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return slurm.NamedStep{}, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// specOfPilot returns the options of a node of another job: the options of the cluster, and
// the local ones that belong to a host.
func specOfPilot(spec, local cluster.Spec) cluster.Spec {
	spec.For = local.For
	spec.Join, spec.StateDir, spec.DebugDir, spec.Grace, spec.NodeWait, spec.HeadWait = local.Join, local.StateDir, local.DebugDir, local.Grace, local.NodeWait, local.HeadWait
	carrier := spec.Network.Carrier
	spec.Network.Interface, spec.Network.Folder, spec.Network.Ports = local.Network.Interface, local.Network.Folder, local.Network.Ports
	spec.Network.Carrier = carrier
	return spec
}

// specForPilots returns the options of a cluster that apply to nodes of other jobs.
func specForPilots(spec cluster.Spec) cluster.Spec {
	spec.Manifests, spec.Images, spec.Command, spec.Logs, spec.Publish = nil, nil, nil, nil, nil
	spec.Stay, spec.State, spec.SlurmJobs, spec.Idle, spec.Kept = false, "", false, 0, cluster.Blocks{}
	return spec
}

// leaveSeat asks the head to let this node leave, and gives its pods the time that the cause
// of the end leaves them. It returns when ctx ends, which the head's answer ends.
func (r *run) leaveSeat(ctx context.Context, cause error) {
	ask := func(ctx context.Context, grace time.Duration) {
		// The head needs some of the time to delete the node.
		if err := r.members.RequestLeave(ctx, grace-min(grace/4, retireTime)); err != nil {
			r.Log.Debug("the head is not told that this node leaves: " + err.Error())
			return
		}
		<-ctx.Done()
	}
	var reason *allocation.Interrupted
	var over *allocation.TimeUp
	switch {
	case errors.As(cause, &reason):
		r.allocation.InGrace(ctx, r.Log, reason, ask)
	case errors.As(cause, &over):
		r.allocation.InTime(ctx, r.Log, over, ask)
	}
}
