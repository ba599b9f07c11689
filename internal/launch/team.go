package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/overlay"
	"berth.dev/berth/internal/rendezvous"
	"berth.dev/berth/internal/sandbox"
	"berth.dev/berth/internal/slurm"
)

const (
	// gatherLimit is how long the nodes of a step wait for each other. srun
	// starts its tasks within a second, on a busy site within some.
	gatherLimit = time.Minute
	// maxQueues is how many cores of a node carry packets between nodes.
	maxQueues = 4
	meshKey   = 32
)

// team is what a run on several nodes has more than one on a single node. The
// head designs the cluster; the others do what it tells them.
type team struct {
	config rendezvous.Config
	// listener and workers are the head's, leader the others'.
	listener *rendezvous.Head
	workers  []worker
	leader   *rendezvous.Peer
	// sockets carry packets between the nodes, one per queue. They outlive the
	// process that serves them.
	sockets []*net.UDPConn
	mesh    mesh
}

// worker is another node, as the head knows it.
type worker struct {
	*rendezvous.Peer
	hello hello
}

// mesh is what one node is told of the network between all.
type mesh struct {
	Key   []byte
	Nodes []overlay.Node
	Self  int
}

// hello is what a node says to the head.
type hello struct {
	Version string
	Offer   cluster.Offer
	// Ports are those of its sockets.
	Ports []uint16
}

// welcome is the head's answer, all that a node needs.
type welcome struct {
	Version string
	Plan    cluster.Plan
	Files   map[string]sandbox.File
	Mesh    mesh
}

// news is what a node says later.
type news struct {
	// Ready: its kubelet has reported that the node is ready.
	Ready bool
}

// newTeam returns nil for a run on one node.
func newTeam(job slurm.Job, getenv func(string) string) (*team, error) {
	if job.Place != slurm.PlaceTask || len(job.Nodes) < 2 {
		return nil, nil
	}
	prover, err := rendezvous.NewMunge("")
	if err != nil {
		return nil, fail(ExitUnavailable, fmt.Errorf("prove this node to the others: %w", err))
	}
	attempt, _ := strconv.Atoi(getenv("SLURM_RESTART_COUNT"))
	return &team{config: rendezvous.Config{
		Step:      rendezvous.Step{Cluster: job.Cluster, Job: job.ID, Step: job.StepID, Attempt: attempt},
		Nodes:     job.Nodes,
		Node:      job.NodeName,
		Prover:    prover,
		Addresses: nodeAddresses,
	}}, nil
}

func nodeAddresses(ctx context.Context, node string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", node)
}

// leads tells whether this node is the head, or alone.
func (t *team) leads() bool { return t == nil || t.config.Node == t.config.Nodes[0] }

// listen lets the other nodes come while this one still looks at itself.
func (t *team) listen(ctx context.Context) (err error) {
	t.listener, err = rendezvous.Listen(ctx, t.config)
	return fail(ExitUnavailable, err)
}

// openSockets makes the sockets for packets between the nodes.
func (t *team) openSockets(cpus int) error {
	for range max(1, min(cpus, maxQueues)) {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{})
		if err != nil {
			return fmt.Errorf("open a socket between the nodes: %w", err)
		}
		t.sockets = append(t.sockets, conn)
	}
	return nil
}

func (t *team) ports() []uint16 {
	var ports []uint16
	for _, conn := range t.sockets {
		ports = append(ports, uint16(conn.LocalAddr().(*net.UDPAddr).Port))
	}
	return ports
}

// gather waits for all other nodes and takes in what they bring. It returns
// the largest packet that reaches all of them.
func (t *team) gather(ctx context.Context) (mtu int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gatherLimit, fmt.Errorf("%s is the longest wait", gatherLimit))
	defer cancel()
	others := t.config.Nodes[1:]
	if err := t.listener.Await(ctx, others); err != nil {
		return 0, fail(ExitUnavailable, err)
	}
	byName := map[string]worker{}
	for range others {
		peer, err := t.listener.Accept(ctx)
		if err != nil {
			return 0, fail(ExitUnavailable, err)
		}
		w := worker{Peer: peer}
		if err := peer.Receive(ctx, &w.hello); err != nil {
			return 0, fail(ExitUnavailable, err)
		}
		if w.hello.Version != cluster.Version() {
			return 0, fail(ExitUnavailable, fmt.Errorf("node %s has berth %s, this node %s: use the same one on all nodes", peer.Name(), w.hello.Version, cluster.Version()))
		}
		byName[peer.Name()] = w
	}
	var hosts []netip.Addr
	for _, name := range others {
		t.workers = append(t.workers, byName[name])
		hosts = append(hosts, hostOf(byName[name].RemoteAddr()))
	}
	mtu, err = overlay.MTU(hosts)
	return mtu, fail(ExitUnavailable, err)
}

func hostOf(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// handOver makes the network between the nodes and tells every other node what
// it is to be.
func (t *team) handOver(ctx context.Context, plans []cluster.Plan, files []map[string]sandbox.File) error {
	key := make([]byte, meshKey)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	nodes := make([]overlay.Node, len(plans))
	for i, member := range plans[0].Members {
		nodes[i] = overlay.Node{
			Name:     member.Name,
			Prefixes: []netip.Prefix{member.Pods, netip.PrefixFrom(member.Address, member.Address.BitLen())},
		}
		if i > 0 {
			nodes[i].Endpoints = endpoints(hostOf(t.workers[i-1].RemoteAddr()), t.workers[i-1].hello.Ports)
		}
	}
	t.mesh = mesh{Key: key, Nodes: nodes}
	for i, w := range t.workers {
		// Each reaches the head at the address that it has connected to.
		theirs := append([]overlay.Node(nil), nodes...)
		theirs[0].Endpoints = endpoints(hostOf(w.LocalAddr()), t.ports())
		err := w.Send(ctx, welcome{
			Version: cluster.Version(), Plan: plans[i+1], Files: files[i+1],
			Mesh: mesh{Key: key, Nodes: theirs, Self: i + 1},
		})
		if err != nil {
			return fail(ExitUnavailable, err)
		}
	}
	return nil
}

func endpoints(host netip.Addr, ports []uint16) []netip.AddrPort {
	var all []netip.AddrPort
	for _, port := range ports {
		all = append(all, netip.AddrPortFrom(host, port))
	}
	return all
}

// awaitReady returns when all other nodes are, and then keeps listening to
// them: one that goes ends the run.
func (t *team) awaitReady(ctx context.Context, giveUp context.CancelCauseFunc) error {
	ready := make(chan struct{}, len(t.workers))
	for _, w := range t.workers {
		go func() {
			for {
				var told news
				if err := w.Receive(ctx, &told); err != nil {
					giveUp(fail(ExitUnavailable, err))
					return
				}
				if told.Ready {
					ready <- struct{}{}
				}
			}
		}()
	}
	for range t.workers {
		select {
		case <-ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// join finds the head and asks it what this node is to be.
func (t *team) join(ctx context.Context, offer cluster.Offer) (welcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gatherLimit, fmt.Errorf("%s is the longest wait", gatherLimit))
	defer cancel()
	addresses, err := nodeAddresses(ctx, t.config.Nodes[0])
	if err != nil {
		return welcome{}, fail(ExitUnavailable, fmt.Errorf("find the addresses of the head: %w", err))
	}
	if t.leader, err = rendezvous.Join(ctx, t.config, addresses); err != nil {
		return welcome{}, fail(ExitUnavailable, err)
	}
	if offer.MeshMTU, err = overlay.MTU([]netip.Addr{hostOf(t.leader.RemoteAddr())}); err != nil {
		return welcome{}, fail(ExitUnavailable, err)
	}
	if err := t.leader.Send(ctx, hello{Version: cluster.Version(), Offer: offer, Ports: t.ports()}); err != nil {
		return welcome{}, fail(ExitUnavailable, err)
	}
	var answer welcome
	if err := t.leader.Receive(ctx, &answer); err != nil {
		return welcome{}, fail(ExitUnavailable, err)
	}
	return answer, nil
}

// serve returns when the head says that all is over: nil, or when it is gone.
func (t *team) serve(ctx context.Context) error {
	for {
		var ignored news
		err := t.leader.Receive(ctx, &ignored)
		var closed *rendezvous.ClosedError
		switch {
		case errors.As(err, &closed):
			return nil
		case err != nil:
			return fail(ExitUnavailable, err)
		}
	}
}

// leave says goodbye to all. The others take their nodes down then.
func (t *team) leave(reason string) {
	if t == nil {
		return
	}
	if t.listener != nil {
		t.listener.Close()
	}
	for _, w := range t.workers {
		w.Close(reason)
	}
	if t.leader != nil {
		t.leader.Close(reason)
	}
	for _, conn := range t.sockets {
		conn.Close()
	}
}

// files are duplicates of the sockets, for the process that serves them.
func (t *team) files() ([]*os.File, error) {
	var files []*os.File
	for _, conn := range t.sockets {
		file, err := conn.File()
		if err != nil {
			return nil, fmt.Errorf("hand a socket on: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}
