// Command seats joins simulated nodes to a cluster of 'berth up --elastic', and records the
// cost of the join and of the nodes after it.
//
// These parts are real: the join protocol for each seat, with munge, squeue and a Slurm job for each
// node, the control plane, and the head's overlay table and service map. Each node has its own
// certificate and connection to the API server, registers a Node, renews a Lease, and watches what a
// kubelet and a node's service map watch. A node has no kubelet, no containers and no end of the
// overlay: nobody answers the head's probes. KWOK would keep all Nodes with one client of an
// administrator, so it would test neither the certificates of nodes nor their connections.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/proof"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "seats:", err)
		os.Exit(1)
	}
}

// record is the result of one stage of the series.
type record struct {
	Time time.Time `json:"time"`
	// Nodes is the number of simulated nodes at the end of the stage, and Joined the number of nodes
	// that joined in it.
	Nodes  int `json:"nodes"`
	Joined int `json:"joined"`
	// Values holds the results, with the unit in the name.
	Values map[string]float64 `json:"values"`
	Facts  map[string]string  `json:"facts"`
}

type options struct {
	cluster, host, api, out string
	jobs                    []string
	stages                  []int
	idle                    time.Duration
	// together bounds the nodes that join at the same time: the head lets each address have at most
	// 64 connections that have not proved themselves, and all nodes have one address here.
	together int
}

func readOptions() (o options, err error) {
	var jobs, stages string
	flag.StringVar(&o.cluster, "cluster", "", "`job` of the cluster")
	flag.StringVar(&o.host, "host", "", "`name` of this host in Slurm")
	flag.StringVar(&o.api, "api", "", "`URL` of the API server on this host")
	flag.StringVar(&o.out, "out", "", "`file` for the records")
	flag.StringVar(&jobs, "jobs", "", "`file` with the numbers of the nodes' jobs, one a line")
	flag.StringVar(&stages, "stages", "10,100,300,1000", "`numbers` of nodes after each stage")
	flag.IntVar(&o.together, "together", 48, "`number` of nodes that join at the same time")
	flag.DurationVar(&o.idle, "idle", 60*time.Second, "time to measure after each stage")
	flag.Parse()
	content, err := os.ReadFile(jobs)
	if err != nil {
		return o, err
	}
	o.jobs = strings.Fields(string(content))
	for text := range strings.SplitSeq(stages, ",") {
		stage, err := strconv.Atoi(text)
		if err != nil || stage > len(o.jobs) {
			return o, fmt.Errorf("read the stage %q: want a number, at most that of the jobs (%d)", text, len(o.jobs))
		}
		o.stages = append(o.stages, stage)
	}
	return o, nil
}

func run(ctx context.Context) error {
	o, err := readOptions()
	if err != nil {
		return err
	}
	if err := raiseFiles(); err != nil {
		return err
	}
	config, err := meeting(ctx, o)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(o.out, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	var joined []*simulated
	defer func() {
		var leaving sync.WaitGroup
		for _, n := range joined {
			leaving.Go(n.leave)
		}
		leaving.Wait()
	}()
	for _, stage := range o.stages {
		r := record{Time: time.Now(), Nodes: stage, Joined: stage - len(joined), Values: map[string]float64{}, Facts: facts(o)}
		before := costs()
		group, joining := errgroup.WithContext(ctx)
		group.SetLimit(o.together)
		for _, job := range o.jobs[len(joined):stage] {
			n := &simulated{api: o.api, lifetime: ctx}
			joined = append(joined, n)
			group.Go(func() error { return n.join(joining, config(job)) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		r.Values["all Ready, s"] = time.Since(r.Time).Seconds()
		r.addTimes(joined[stage-r.Joined:])
		r.addCosts("join", before, costs())
		idle := costs()
		select {
		case <-time.After(o.idle):
		case <-ctx.Done():
			return errors.New("interrupted")
		}
		r.addCosts("idle", idle, costs())
		if err := lostOf(joined); err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// meeting returns a function that makes the configuration of the node of a job, as
// 'berth join' does.
func meeting(ctx context.Context, o options) (func(job string) members.PilotConfig, error) {
	step, ok, err := slurm.FindStep(ctx, o.cluster, "berth-up", slurm.AskLong)
	if err != nil || !ok {
		return nil, fmt.Errorf("find the cluster of job %s: %w", o.cluster, err)
	}
	join := rendezvous.Step{Cluster: os.Getenv("SLURM_CLUSTER_NAME"), Job: step.Job, Step: step.Step, Attempt: step.Restarts, Joining: true}
	prover, err := proof.OfPilot(ctx, "", join)
	if err != nil {
		return nil, err
	}
	addresses, err := hostnet.AddressBook(slurm.Job{NodeName: o.host}, os.Getenv)
	if err != nil {
		return nil, err
	}
	return func(job string) members.PilotConfig {
		return members.PilotConfig{
			Join: join, Head: step.Head, Job: job, Host: o.host, Prover: prover, Addresses: addresses,
			Ports: rendezvous.DefaultPorts(), Wait: 10 * time.Minute, Log: slog.New(slog.DiscardHandler),
		}
	}, nil
}
