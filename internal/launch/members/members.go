package members

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/proof"
	"berth.dev/berth/internal/node/sandbox"
)

const (
	// gatherLimit bounds how long the nodes of a step wait for each other by
	// default. srun starts its tasks within a second, or within a few on a busy
	// site.
	gatherLimit = time.Minute
	// lossLimit is the silence after which a node counts as lost.
	lossLimit = 8 * time.Second
)

// Members holds the members of a run, as one of them sees the others. The head
// gathers their offers (gather.go) and monitors them (monitor.go). The others
// follow the head (follow.go). A run on one node has one member, which is the head.
type Members struct {
	roster
	network
	headConn
	losses losses
	wait   time.Duration
	log    *slog.Logger
	// pilot is set on a node of another job.
	pilot bool

	// Only the head uses listener, others and archives.
	listener *rendezvous.Head
	others   []*member
	archives *archive.Server
	// served are the archives that source serves since the start.
	served []archive.Archive
	source archive.Source
	// failover holds what the nodes need so that another node can lead the run.
	// It is nil if the run ends with the head.
	failover *failover
	// own is the kubeconfig of a node that may lead after the head. It is nil on
	// other nodes.
	own []byte
	// Moved is called with the head's name when this node has reconnected to a
	// lost head or connected to its successor. It must be set before Follow.
	Moved func(head string)
	// folder exchanges the nodes' public keys. It is nil if they are exchanged in
	// another way, or not needed.
	folder *rendezvous.Folder
	// seats holds the nodes of other jobs. It is nil if there are no seats, and except on
	// the head.
	seats *Seats
	// keptKey is the key of the network between the nodes under the previous head; nil if there
	// was none.
	keptKey []byte
	// back leads a node of another job to the next head of its cluster; nil on other nodes.
	back *wayBack
	// introduced is set when no other node waits for this one to introduce
	// itself: on the head when it sends the plans, on another node when it joins.
	introduced bool

	mu sync.Mutex
	// gone is set when this node has closed its connections.
	gone bool
	// endMonitor ends the monitor of the other nodes; nil where there is none.
	endMonitor context.CancelFunc
}

// member is another node, as seen by the head.
type member struct {
	// name identifies the node in the rendezvous, node in Kubernetes.
	name, node string
	hello      hello
	// peer is the connection to the node, guarded by Members.mu. A node that
	// returns has a new one.
	peer *rendezvous.Peer
	// ready is set when the node has reported that it is ready.
	ready bool
	// returned receives the new connection of a lost node.
	returned chan *rendezvous.Peer
}

// hello is the first message of a node to the head.
type hello struct {
	Version string
	Offer   cluster.Offer
	// Address is the destination of packets for the node's pods. If it is the zero
	// Addr, the packets go to the remote address of the connection.
	Address netip.Addr
	Ports   hostnet.Ports
	// Returning is set if the node is already a part of the cluster and had lost
	// the head. Of its offer, only RunID is set then.
	Returning bool
}

// Welcome is the head's answer, with all that a node needs. Apart from Version it
// is empty for a node that returns.
type Welcome struct {
	Version string
	Plan    cluster.Plan
	Files   map[string]sandbox.File
	Network hostnet.View
	// Archives are the head's archives, which Source serves.
	Archives []archive.Archive
	Source   archive.Source
	// Changes holds what has changed in the network between the nodes since its start, for
	// a node that returns.
	Changes []hostnet.Change
	// Succession is nil if the run ends with the head. Own is the kubeconfig of a
	// node that may lead after the head.
	Succession *failover
	Own        []byte
}

// headMessage is a later message of the head to a node.
type headMessage struct {
	Import  *ImportRequest   `json:",omitempty"`
	Changes []hostnet.Change `json:",omitempty"`
}

// statusMessage is a later message of a node to the head.
type statusMessage struct {
	// Ready is set when the node's control plane, if it has one, and its kubelet
	// are ready.
	Ready bool
	// Report is the result of an import request.
	Report *report `json:",omitempty"`
	// Leaving is set when a node of another job has to leave its seat. Its pods have that
	// time to end.
	Leaving *time.Duration `json:",omitempty"`
}

// Options holds the inputs of New from the command line and its environment.
type Options struct {
	Spec   cluster.Spec
	Getenv func(string) string
	Log    *slog.Logger
}

// New returns the members of a run. On the first node of a host it also completes o,
// which the host's other nodes receive.
func New(ctx context.Context, job slurm.Job, options Options, o *LocalConfig) (*Members, error) {
	spec := options.Spec.Network
	ports := rendezvous.DefaultPorts()
	if spec.Ports != "" {
		var err error
		if ports, err = rendezvous.ParsePortRange(spec.Ports); err != nil {
			return nil, exitcode.Wrap(exitcode.Usage, err)
		}
	}
	hosts, own, err := hostsOf(job)
	if err != nil {
		return nil, err
	}
	var names []string
	hostOf := map[string]string{}
	// The first nodes are on different machines. They may have control planes,
	// and the loss of one machine must not end them all.
	for i := range options.Spec.NodesPerHost {
		for _, host := range hosts {
			name := memberName(host, i)
			names = append(names, name)
			hostOf[name] = host
		}
	}
	if len(names) < 2 && options.Spec.Seats == 0 {
		return &Members{roster: roster{config: rendezvous.Config{Nodes: names, Node: own}}, log: options.Log}, nil
	}
	t := &Members{
		roster: roster{
			config:  rendezvous.Config{Nodes: names, Node: memberName(own, o.Index), Ports: ports, Loss: lossLimit},
			elastic: options.Spec.Seats > 0,
		},
		network: newNetwork(ports, spec.Carrier),
		wait:    cmp.Or(options.Spec.NodeWait, gatherLimit), log: options.Log,
	}
	if t.data.Fast, err = hostnet.WantsFastPath(spec.FastPath); err != nil {
		options.Log.Debug("connections of pods are not made by the hosts: " + err.Error())
	}
	if o.Step.Job == "" {
		o.Step = stepOf(job, options.Getenv)
	}
	t.config.Step = o.Step
	if len(names) < 2 {
		t.config.Addresses, err = hostnet.AddressBook(job, options.Getenv)
		return t, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if len(hosts) > 1 {
		find, err := hostnet.AddressBook(job, options.Getenv)
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Unavailable, err)
		}
		t.config.Addresses = func(ctx context.Context, node string) ([]netip.Addr, error) { return find(ctx, hostOf[node]) }
		if o.Index == 0 {
			if o.Proof, err = proof.Find(ctx, job, proof.Options{Folder: spec.Folder, Wait: t.wait, Getenv: options.Getenv, Log: options.Log}); err != nil {
				return nil, err
			}
		}
		t.config.Prover, t.folder, err = o.Proof.Prover(o.Step, spec.Folder, hostOf)
		if err == nil && t.folder != nil && o.Index == 0 {
			err = t.folder.Publish(own, o.Proof.PublicKey())
		}
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("prove node %s to the others: %w", own, err))
		}
		return t, nil
	}
	// All nodes are processes of one parent, which gives them a key.
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	t.config.Bind, t.data.Address, t.data.MTU = loopback, loopback, cluster.LocalMTU
	t.config.Addresses = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopback}, nil }
	if o.Proof.Key == nil {
		if o.Proof.Key, err = proof.NewKey(); err != nil {
			return nil, err
		}
	}
	t.config.Prover, err = rendezvous.NewPreShared(o.Proof.Key)
	return t, err
}

// SetLog replaces the log.
func (m *Members) SetLog(log *slog.Logger) { m.log = log }

// waiting returns a context that ends when the nodes have waited for each other as
// long as the options allow.
func (m *Members) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return proof.WaitFor(ctx, m.wait)
}

// forgetKeys removes this node's key from the folder, or all keys on the head, and
// closes the folder.
func (m *Members) forgetKeys() {
	switch {
	case m.folder == nil:
		return
	case m.Leads():
		_ = m.folder.Clear()
	default:
		m.folder.Withdraw(m.config.Node)
	}
	m.folder.Close()
}

// RunEnded is the head's reason to leave the other nodes at the end of the run.
const RunEnded = "the run has ended"

// Leave closes all connections with a reason. The other nodes end then.
func (m *Members) Leave(reason string) {
	m.disconnect(func(peer *rendezvous.Peer) { peer.Close(reason) }, reason)
}

// Drop closes all connections without a message, so that the other nodes look for
// another head.
func (m *Members) Drop() { m.disconnect((*rendezvous.Peer).Drop, RunEnded) }

// Move is like Leave at the end of a run whose job starts again. Nodes of other jobs then wait
// for the next head.
func (m *Members) Move() {
	m.disconnect(func(peer *rendezvous.Peer) { peer.Close(RunEnded) }, headMoves)
}

// disconnect closes all connections and sockets between the nodes. Nodes of other jobs get the
// reason.
func (m *Members) disconnect(end func(*rendezvous.Peer), reason string) {
	m.introduced = true
	m.mu.Lock()
	m.gone = true
	if m.endMonitor != nil {
		m.endMonitor()
	}
	peers := []*rendezvous.Peer{m.leaveHead()}
	for _, w := range m.others {
		peers = append(peers, w.peer)
	}
	m.mu.Unlock()
	if m.listener != nil {
		m.listener.Close()
	}
	m.archives.Close()
	var leaving sync.WaitGroup
	for _, peer := range peers {
		if peer != nil {
			leaving.Go(func() { end(peer) })
		}
	}
	leaving.Go(func() { m.getSeats().close(reason) })
	leaving.Wait()
	m.sockets.Close()
	m.forgetKeys()
}

// getSeats returns the seats, or nil if there are none.
func (m *Members) getSeats() *Seats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seats
}

// Own returns the kubeconfig of a node that may lead after the head, or nil.
func (m *Members) Own() []byte { return m.own }

// Farewell ends the connection to the head with a reason. A head that receives the
// reason reports it to the user. Then Farewell returns only its exit code, so that
// the user sees the reason once. Otherwise it returns why.
func (m *Members) Farewell(why error) (int, error) {
	defer m.Leave(why.Error())
	return farewell(m.head(), why)
}

// setPeer stores a new connection to another node, and reports whether it did. It does
// not if this node has left.
func (m *Members) setPeer(w *member, peer *rendezvous.Peer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return false
	}
	w.peer = peer
	return true
}
