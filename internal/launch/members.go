package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/network/overlay"
	"berth.dev/berth/internal/node/sandbox"
)

const (
	// gatherLimit is how long the nodes of a step wait for each other unless
	// the user says otherwise. srun starts its tasks within a second, on a
	// busy site within some.
	gatherLimit = time.Minute
	// lossLimit is how long a node may be silent until it counts as lost.
	lossLimit = 8 * time.Second
)

// members holds the state that only a run on several nodes needs. The head
// designs the cluster (gather.go) and monitors the other members (monitor.go).
// They follow its plan (member.go).
type members struct {
	config rendezvous.Config
	wait   time.Duration
	data   dataNetwork
	// carrier is how packets travel.
	carrier overlay.Carrier
	log     *slog.Logger

	// sockets carry packets between the nodes. They outlive the process that
	// serves them.
	sockets sockets
	mesh    mesh

	// listener and workers are the head's.
	listener *rendezvous.Head
	others   []*member
	archives *archiveServer
	// failover is what the nodes know of each other where another one may
	// lead the run after the head; nil where that ends the run.
	failover *failover
	// own is the kubeconfig of a node that may lead after the head; nil of
	// others.
	own []byte
	// moved is called with the head's name when it was lost, and found again or
	// another one.
	moved func(head string)
	// folder passes the nodes' keys on; nil where something else does.
	folder *rendezvous.Folder
	// introduced: of the head, the others know what they are to be; of another node,
	// the head knows of it.
	introduced bool

	mu sync.Mutex
	// leader is the head, as the others know it.
	leader *rendezvous.Peer
	// ready: this node has reported that it is.
	ready bool
	gone  bool
	// unreported is what to say of nodes that were just lost.
	unreported map[string]string
}

// member is another node, as the head knows it.
type member struct {
	// name is the machine's, node that of the Kubernetes node.
	name, node string
	hello      hello
	// peer is guarded by the team's mutex: it changes when the node returns.
	peer *rendezvous.Peer
	// ready: it has reported that it is.
	ready bool
	// returned is a new connection of a node whose old one is lost.
	returned chan *rendezvous.Peer
}

// mesh is what one node is told of the network between all.
type mesh struct {
	Key     []byte
	Carrier overlay.Carrier
	Nodes   []overlay.Node
	// Switches are where the Switch of each node takes connections.
	Switches [][]netip.AddrPort
	Self     int
}

// hello is what a node says to the head.
type hello struct {
	Version string
	Offer   cluster.Offer
	// Address is where packets for the node's pods go; invalid means where
	// this comes from.
	Address netip.Addr
	Ports   hostPorts
	// Returning: the node has been a part of the cluster and still is what it
	// was, but had lost the head.
	Returning bool
}

// welcome is the head's answer, all that a node needs; empty for one that
// returns.
type welcome struct {
	Version string
	Plan    cluster.Plan
	Files   map[string]sandbox.File
	Mesh    mesh
	// Archives are those of the head, to be had from Source.
	Archives []archive
	Source   archiveSource
	// Succession is nil where the loss of the head ends the run. Own is the
	// kubeconfig of a node that may lead after it.
	Succession *failover
	Own        []byte
}

// statusMessage is what a node says later.
type statusMessage struct {
	// Ready: its kubelet has reported that the node is ready.
	Ready bool
	// Report is what came of an errand.
	Report *report `json:",omitempty"`
}

// newMembers returns nil for a run on one node. The order of a first node is
// completed, for its siblings.
func newMembers(ctx context.Context, job slurm.Job, options Options, o *localMemberConfig) (*members, error) {
	network := options.Spec.Network
	ports := rendezvous.DefaultPorts()
	if network.Ports != "" {
		var err error
		if ports, err = rendezvous.ParsePortRange(network.Ports); err != nil {
			return nil, exitcode.Wrap(exitcode.Usage, err)
		}
	}
	hosts, own, err := hostsOf(job)
	if err != nil {
		return nil, err
	}
	var names []string
	hostOf := map[string]string{}
	// The first ones on as many machines as there are: they may have control
	// planes, not all of which a lost machine is to take along.
	for i := range options.Spec.NodesPerHost {
		for _, host := range hosts {
			name := memberName(host, i)
			names = append(names, name)
			hostOf[name] = host
		}
	}
	if len(names) < 2 {
		return nil, nil
	}
	t := &members{
		config: rendezvous.Config{Nodes: names, Node: memberName(own, o.Index), Ports: ports, Loss: lossLimit},
		wait:   cmp.Or(options.Spec.NodeWait, gatherLimit), data: dataNetwork{ports: ports}, carrier: overlay.Carrier(network.Carrier), log: options.Log,
	}
	if t.data.fast, err = wantsFastPath(network.FastPath); err != nil {
		options.Log.Debug("connections of pods are not made by the hosts: " + err.Error())
	}
	if o.Step.Job == "" {
		o.Step = stepOf(job, options.Getenv)
	}
	t.config.Step = o.Step
	if len(hosts) > 1 {
		find, err := addressBook(job, options.Getenv)
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Unavailable, err)
		}
		t.config.Addresses = func(ctx context.Context, node string) ([]netip.Addr, error) { return find(ctx, hostOf[node]) }
		if o.Index == 0 {
			if o.Proof, err = findProof(ctx, job, options); err != nil {
				return nil, err
			}
		}
		t.config.Prover, err = t.prover(o.Proof, options.Spec.Network.Folder, hostOf)
		if err == nil && t.folder != nil && o.Index == 0 {
			err = t.folder.Publish(own, o.Proof.public())
		}
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove node %s to the others: %w", own, err))
		}
		return t, nil
	}
	// All are processes of one parent, which gives them a key.
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	t.config.Bind, t.data.address, t.data.mtu = loopback, loopback, cluster.LocalMTU
	t.config.Addresses = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopback}, nil }
	if o.Proof.Key == nil {
		if o.Proof.Key, err = newKey(); err != nil {
			return nil, err
		}
	}
	t.config.Prover, err = rendezvous.NewPreShared(o.Proof.Key)
	return t, err
}

// addressBook knows where the hosts of a run are.
func addressBook(job slurm.Job, getenv func(string) string) (func(ctx context.Context, host string) ([]netip.Addr, error), error) {
	local, err := localAddresses()
	if err != nil {
		return nil, err
	}
	look := func(ctx context.Context, name string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	}
	if own := findOwnNetwork(job, getenv, local, look); own != nil {
		return own.addresses, nil
	}
	return addressesOf, nil
}

// localAddresses are those of the interfaces here.
func localAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this host: %w; 'ip address' has to work in this step", err)
	}
	var local []netip.Addr
	for _, one := range all {
		if prefix, err := netip.ParsePrefix(one.String()); err == nil {
			local = append(local, prefix.Addr())
		}
	}
	return local, nil
}

// addressesOf asks for a host's addresses by its name, and where that is none to
// the resolver, as Slurm does.
func addressesOf(ctx context.Context, host string) ([]netip.Addr, error) {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	var unknown *net.DNSError
	if !errors.As(err, &unknown) {
		return addresses, err
	}
	configured, askErr := slurm.NodeAddress(ctx, host, slurm.AskSlurm)
	if askErr != nil || configured == host {
		return nil, errors.Join(err, askErr)
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", configured)
}

// hostsOf are the machines of a run, and the name of this one.
func hostsOf(job slurm.Job) (hosts []string, own string, err error) {
	if job.Place == slurm.PlaceTask {
		return job.Nodes, job.NodeName, nil
	}
	if own = job.NodeName; own == "" {
		if own, err = os.Hostname(); err != nil {
			return nil, "", fmt.Errorf("find the host's name: %w", err)
		}
	}
	return []string{own}, own, nil
}

func stepOf(job slurm.Job, getenv func(string) string) rendezvous.Step {
	if job.Place != slurm.PlaceTask {
		return rendezvous.Step{Job: fmt.Sprintf("local-%d", os.Getpid())}
	}
	attempt, _ := strconv.Atoi(getenv("SLURM_RESTART_COUNT"))
	return rendezvous.Step{Cluster: job.Cluster, Job: job.ID, Step: job.StepID, Attempt: attempt}
}

// size is how many nodes the run has.
func (m *members) size() int {
	if m == nil {
		return 1
	}
	return len(m.config.Nodes)
}

// controls tells whether this node runs a control plane.
func (m *members) controls(spec cluster.Spec) bool {
	return m.leads() || spec.HighlyAvailable && slices.Index(m.config.Nodes, m.config.Node) < cluster.ControlNodes
}

// leads tells whether this node is the head, or alone.
func (m *members) leads() bool { return m == nil || m.config.Node == m.config.Nodes[0] }

// waiting bounds the time for which the nodes wait for each other.
func (m *members) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return waitFor(ctx, m.wait)
}

func waitFor(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, wait, fmt.Errorf("%s is the longest wait; --node-wait sets another", wait))
}

// leave says goodbye to all. The others take their nodes down then.
func (m *members) leave(reason string) {
	if m == nil {
		return
	}
	m.disconnect(func(peer *rendezvous.Peer) { peer.Close(reason) })
}

// drop leaves all without a word: they are to look for another head.
func (m *members) drop() { m.disconnect((*rendezvous.Peer).Drop) }

// disconnect ends every connection, and what else there is between the nodes.
func (m *members) disconnect(end func(*rendezvous.Peer)) {
	m.introduced = true
	m.mu.Lock()
	m.gone = true
	peers := []*rendezvous.Peer{m.leader}
	for _, w := range m.others {
		peers = append(peers, w.peer)
	}
	m.mu.Unlock()
	if m.listener != nil {
		m.listener.Close()
	}
	m.archives.close()
	var leaving sync.WaitGroup
	for _, peer := range peers {
		if peer != nil {
			leaving.Go(func() { end(peer) })
		}
	}
	leaving.Wait()
	m.sockets.close()
	m.forgetKeys()
}

// reportReady tells the head that this node is ready, where it is. A connection
// that has just broken is followed by one that begins with it.
func (m *members) reportReady(ctx context.Context) {
	m.mu.Lock()
	ready, head := m.ready, m.leader
	m.mu.Unlock()
	if ready {
		_ = head.Send(ctx, statusMessage{Ready: true})
	}
}

// head is the connection to the head, which changes when it is lost and found.
func (m *members) head() *rendezvous.Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader
}

// setPeer notes a new connection, or refuses it when this node has left.
func (m *members) setPeer(slot **rendezvous.Peer, peer *rendezvous.Peer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return false
	}
	*slot = peer
	return true
}
