package members

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/node/sandbox"
)

const (
	// seatLimit bounds how long a node of another job may take to look at its host, once
	// it has a seat.
	seatLimit = time.Minute
	// returnSeatLimit bounds how long a new head keeps the seats of the nodes of other jobs
	// that the previous one had. It is shorter than the time until Kubernetes evicts the pods of
	// a silent node: 50 s until the node is unknown, and 30 s that pods tolerate.
	returnSeatLimit = 30 * time.Second
	// tellLimit bounds the time to send a change of a seat to a node. A node that takes
	// longer counts as lost.
	tellLimit = 10 * time.Second
)

// SeatReporter reports to the API server what becomes of nodes of other jobs.
type SeatReporter interface {
	// Drain closes a node to new pods, and asks its pods to end within grace.
	Drain(ctx context.Context, node string, grace time.Duration) error
	// Retire takes a node out of service and deletes it.
	Retire(ctx context.Context, node, reason string) error
}

// SeatsConfig is the configuration of Seats.
type SeatsConfig struct {
	// Spec holds the options of the cluster, which nodes of other jobs receive.
	Spec cluster.Spec
	// Join identifies the cluster to them, and Prover proves them.
	Join   rendezvous.Step
	Prover rendezvous.Prover
	// Plan makes the plan and the keys of a node in a seat.
	Plan func(seat int, name string, offer cluster.Offer) (cluster.Plan, map[string]sandbox.File, error)
	// Jobs returns the jobs of this user, and Addresses the addresses of a host.
	Jobs      func(ctx context.Context) ([]slurm.Queued, error)
	Addresses func(ctx context.Context, host string) ([]netip.Addr, error)
	UID       int
	Reporter  SeatReporter
	// Returns is set if the cluster may have another head later, and the nodes return to it.
	// Expected holds the nodes of the previous head. Seated is called when a node is ready.
	Returns  bool
	Expected []Seat
	Seated   func()
}

// Seat is a node of another job in its seat, as the next head of the cluster knows it.
type Seat struct {
	Index int
	// Name identifies the node in the rendezvous, Node in Kubernetes. RunID identifies its
	// process.
	Name, Node, RunID string
}

// Seats lets nodes of other jobs join a cluster that runs. Only the head has Seats.
type Seats struct {
	members *Members
	SeatsConfig
	listener *rendezvous.Head
	end      context.CancelFunc
	queue    recentJobs
	spread   *spread

	mu sync.Mutex
	// taken holds the nodes in seats, and nil in free seats.
	taken []*seated
	// away holds, by their names in Kubernetes, the nodes that have left and are deleted again.
	away map[string]*late
	// farewell is the reason for the nodes when the seats are closed.
	farewell string
	// late is set when no node of the previous head may return any more.
	late bool
}

// seated is a node of another job.
type seated struct {
	// name identifies the node in the rendezvous, node in Kubernetes.
	name, node string
	seat       int
	// runID identifies the process of the node. It is empty until the node has introduced itself.
	runID string
	// peer is nil if the previous head had the node, which has not returned yet. left is
	// set when it is too late for that.
	peer *rendezvous.Peer
	left bool
	// returned is set if the node was in the seat under the previous head.
	returned bool
	// change holds what the other nodes know of the node. It is the zero value before.
	change hostnet.Change
	known  bool
	// archives serves the images that the cluster was started with, until the node is ready.
	archives *archive.Server
}

// greeting is the first message of the head to a node of another job.
type greeting struct {
	Version string
	Spec    cluster.Spec
	// Returns is set if the cluster may have another head later.
	Returns bool
}

// OpenSeats lets nodes of other jobs join until ctx ends. It must be called after
// SendPlans.
func (m *Monitor) OpenSeats(ctx context.Context, config SeatsConfig) error {
	s := &Seats{members: m.Members, SeatsConfig: config, taken: make([]*seated, config.Spec.Seats), spread: newSpread(), away: map[string]*late{}, farewell: RunEnded}
	s.reserve(config.Expected)
	s.queue.ask = config.Jobs
	step := m.config
	step.Nodes, step.Node = []string{m.config.Node}, m.config.Node
	step.Step, step.Prover, step.Addresses, step.Admit = config.Join, config.Prover, nil, s.admit
	var err error
	if s.listener, err = rendezvous.Listen(ctx, step); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	// Like the nodes of the step, nodes of other jobs are needed until this node leaves.
	staying, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		s.close(RunEnded)
		return nil
	}
	m.seats = s
	go s.spread.run(staying, func() []connection { return append(s.members.ofStep(), s.connections()...) })
	go s.forgetAbsent(staying)
	go func() {
		for {
			peer, err := s.listener.Accept(ctx)
			if err != nil {
				return
			}
			go s.serve(staying, m, peer)
		}
	}()
	return nil
}

// recentJobs keeps the answer of squeue for a moment, because many nodes may come at once.
type recentJobs struct {
	ask func(ctx context.Context) ([]slurm.Queued, error)
	mu  sync.Mutex
	// asked is the time of the question that jobs or err answers.
	asked time.Time
	jobs  []slurm.Queued
	err   error
}

// recentFor is the time that an answer of squeue is used again.
const recentFor = time.Second

// find returns a running job.
func (r *recentJobs) find(ctx context.Context, id string) (slurm.Queued, error) {
	return r.findSince(ctx, id, time.Now())
}

// findSince returns a running job for a node that has come at a time. It asks again if the last
// answer does not have the job, unless it asked after that time: nodes that come at once share a
// question, and the error if Slurm does not answer.
func (r *recentJobs) findSince(ctx context.Context, id string, came time.Time) (slurm.Queued, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := func() int { return slices.IndexFunc(r.jobs, func(job slurm.Queued) bool { return job.ID == id }) }
	if i := found(); r.asked.Before(came) && (i < 0 || r.jobs[i].State != slurm.Running || time.Since(r.asked) > recentFor) {
		now := time.Now()
		jobs, err := r.ask(ctx)
		if err != nil && ctx.Err() != nil { // it says nothing about Slurm
			return slurm.Queued{}, fmt.Errorf("ask Slurm for job %s: %w", id, err)
		}
		r.jobs, r.err, r.asked = jobs, err, now
	}
	if r.err != nil {
		return slurm.Queued{}, fmt.Errorf("ask Slurm for job %s: %w", id, r.err)
	}
	i := found()
	if i < 0 {
		return slurm.Queued{}, rendezvous.Final(fmt.Errorf("job %s is not in Slurm's queue, or is not yours", id))
	}
	return r.jobs[i], nil
}

// admit decides whether a node may come, which has proved that it is this user's. Its name
// is HOST-JOB.
func (s *Seats) admit(ctx context.Context, name string, from netip.Addr) error {
	host, id, err := parseSeated(name)
	if err != nil {
		return rendezvous.Final(err)
	}
	job, err := s.queue.find(ctx, id)
	switch {
	case err != nil:
		return err
	case job.UID != s.UID:
		return rendezvous.Final(fmt.Errorf("job %s belongs to user %d, want %d", id, job.UID, s.UID))
	case job.State != slurm.Running:
		return fmt.Errorf("job %s is %s, not %s", id, job.State, slurm.Running)
	}
	hosts, err := slurm.ExpandHosts(job.NodeList)
	if err != nil {
		return fmt.Errorf("read the nodes of job %s: %w", id, err)
	}
	if !slices.Contains(hosts, host) {
		return rendezvous.Final(fmt.Errorf("job %s does not run on %s, but on %s", id, host, job.NodeList))
	}
	addresses, err := s.Addresses(ctx, host)
	if err != nil {
		return fmt.Errorf("find the addresses of %s: %w", host, err)
	}
	if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Unmap().WithZone("") == from }) {
		return fmt.Errorf("%s is not an address of %s, which has %v", from, host, addresses)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.free(name)
	return err
}

// free returns a free seat for a node. The caller holds mu.
func (s *Seats) free(name string) (int, error) {
	if i := slices.IndexFunc(s.taken, func(n *seated) bool { return n != nil && n.name == name }); i >= 0 {
		if s.taken[i].absent() {
			return i, nil
		}
		return 0, fmt.Errorf("node %s has a seat already, or is leaving it", name)
	}
	if i := slices.Index(s.taken, nil); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("all seats of the cluster are taken (%d): a larger number for --elastic of 'berth up' allows more", len(s.taken))
}

// parseSeated parses the name of a node of another job. The job's number has no dash.
func parseSeated(name string) (host, job string, err error) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 || i == len(name)-1 || strings.Trim(name[i+1:], "0123456789") != "" {
		return "", "", fmt.Errorf("the name %q of a node is not HOST-JOB", name)
	}
	return name[:i], name[i+1:], nil
}

// serve lets a node take a seat, and follows it until it has left.
func (s *Seats) serve(ctx context.Context, m *Monitor, peer *rendezvous.Peer) {
	n, err := s.take(peer)
	if err != nil {
		peer.Close(err.Error())
		return
	}
	if err := s.seat(ctx, n); err != nil {
		if s.mayTryAgain(n, err) {
			return
		}
		m.log.Warn(fmt.Sprintf("node %s cannot join: %v", n.name, err))
		peer.Close(err.Error())
		s.leave(ctx, n, err)
		return
	}
	if n.returned {
		m.log.Info(fmt.Sprintf("node %s is back", n.node))
	} else {
		m.log.Info(fmt.Sprintf("node %s has joined", n.node))
	}
	s.leave(ctx, n, s.follow(ctx, m, n))
}

// take gives a node a seat.
func (s *Seats) take(peer *rendezvous.Peer) (*seated, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seat, err := s.free(peer.Name())
	if err != nil {
		return nil, err
	}
	if n := s.taken[seat]; n != nil { // it may return
		n.peer = peer
		return n, nil
	}
	n := &seated{name: peer.Name(), seat: seat, peer: peer}
	s.taken[seat] = n
	return n, nil
}

// giveName sets the name of a node in Kubernetes, which no other node may have: the names of
// hosts are not always names of nodes, and a host of the cluster may be named HOST-JOB.
func (s *Seats) giveName(ctx context.Context, n *seated) error {
	host, job, err := parseSeated(n.name)
	if err != nil {
		return err
	}
	name := cluster.SeatName(host, job)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.awaitName(ctx, name); err != nil {
		return err
	}
	inUse := slices.ContainsFunc(s.taken, func(other *seated) bool { return other != nil && other.node == name })
	for i := range s.members.Size() {
		inUse = inUse || s.members.places.Name(i) == name
	}
	if inUse {
		return fmt.Errorf("name host %s of job %s: the cluster has another node %s; let the job run on other hosts", host, job, name)
	}
	n.node = name
	return nil
}

// seat exchanges the first messages with a node, and introduces it to all others.
func (s *Seats) seat(ctx context.Context, n *seated) error {
	ctx, cancel := context.WithTimeoutCause(ctx, seatLimit, fmt.Errorf("it was not ready within %s", seatLimit))
	defer cancel()
	if err := n.peer.Send(ctx, greeting{cluster.Version(), s.Spec, s.Returns}); err != nil {
		return err
	}
	var said hello
	if err := n.peer.Receive(ctx, &said); err != nil {
		return err
	}
	if said.Version != cluster.Version() {
		return fmt.Errorf("node %s has berth %s, this cluster %s: use the same one", n.name, said.Version, cluster.Version())
	}
	if said.Returning || n.runID != "" {
		return s.seatAgain(ctx, n, said)
	}
	n.runID = said.Offer.RunID
	if err := s.giveName(ctx, n); err != nil {
		return err
	}
	plan, files, err := s.Plan(n.seat, n.node, said.Offer)
	if err != nil {
		return err
	}
	welcome := Welcome{Version: cluster.Version(), Plan: plan, Files: files, Archives: s.members.served}
	if len(s.members.served) > 0 {
		if n.archives, err = archive.Serve(s.members.served, s.members.config.Ports); err != nil {
			return err
		}
		welcome.Source = n.archives.Source
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.announce(n, said, plan.Index); err != nil {
		return err
	}
	welcome.Network = s.members.endOf(plan.Index, n.peer)
	return n.peer.Send(ctx, welcome)
}

// announce introduces a node in a place to all others. The caller holds mu.
func (s *Seats) announce(n *seated, said hello, place int) error {
	w := member{hello: said, peer: n.peer}
	change := hostnet.Change{Index: place, Name: n.node, Host: w.address(), Ports: said.Ports}
	if err := s.members.checkSeat(change, n.peer); err != nil {
		return err
	}
	s.tell(n, change)
	n.known = true
	return nil
}
