package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/network/overlay"
)

const (
	// signalTimeout bounds the wait for the head after a signal. It is longer
	// than any workload takes to end. The loss of the head is noticed in other
	// ways.
	signalTimeout = ownGrace
	// returnLimit bounds the attempts of a node to return to the head. Meanwhile
	// it checks every betweenKnocks whether the head is dead.
	returnLimit   = time.Minute
	betweenKnocks = 300 * time.Millisecond
)

// work is a run on a node that is not the head. The node follows the head's plan
// until the head ends the run. If it leads the run in the end, work returns the
// workload's exit code.
func (r *run) work(ctx context.Context) (code int, err error) {
	// Slurm signals all nodes at once. The head asks the workload to end, and
	// needs its nodes meanwhile.
	var joined atomic.Bool
	signalled := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(signalled, func() {
		cause := context.Cause(signalled)
		var reason *allocation.Interrupted
		if !errors.As(cause, &reason) || !joined.Load() {
			cancel(cause)
			return
		}
		time.AfterFunc(signalTimeout, func() { cancel(cause) })
	})
	defer stop()
	staying, lead := context.WithCancelCause(ctx)
	defer lead(nil)
	for _, step := range []func(context.Context) error{
		r.inspectHost, r.makeDirectories, r.join,
		func(context.Context) error { joined.Store(true); go r.stay(staying, cancel); return nil },
		r.publish, r.startSandbox, r.startRoles, r.importImages, r.startLateNode, r.reportReady,
		func(ctx context.Context) error {
			if r.members.own == nil {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			code, err = r.takeOver(ctx, signalled, func() { lead(errLeads) }, cancel)
			return err
		},
	} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			var closed *rendezvous.ClosedError
			if errors.Is(err, errFirstEnded) || errors.As(err, &closed) && !closed.Here {
				r.Log.Debug("ending: " + err.Error())
				return 0, nil // the head has reported the reason
			}
			head := r.members.head()
			if r.lostLease.Load() || head == nil {
				return 0, err
			}
			defer r.members.leave(err.Error())
			return farewell(head, err)
		}
	}
	return code, nil
}

// join connects to the head and receives this node's plan.
func (r *run) join(ctx context.Context) error {
	var port uint16
	if r.members.controls(r.Spec) {
		var err error
		if r.apiListener, port, err = loopbackListener(); err != nil {
			return err
		}
	}
	offer, err := r.host.offer(r.scratch.Path, port, r.labels)
	if err != nil {
		return err
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	offer.CgroupsDelegated, offer.FastPath = r.cgroup != nil, r.hasSwitch()
	answer, err := r.members.join(ctx, offer, r.host.cpus.Count)
	if err != nil {
		return err
	}
	r.plan, r.members.mesh = answer.Plan, answer.Mesh
	r.members.failover, r.members.own = answer.Succession, answer.Own
	r.archives, r.source = answer.Archives, answer.Source
	for _, a := range r.archives {
		// A folder that is mounted on access, as on CVMFS, must be mounted before
		// the sandbox starts. Missing archives are reported later.
		_ = a.Here()
	}
	r.identities.Nodes = append(r.identities.Nodes, answer.Files)
	r.pulls = readPulls(ctx, r.plan, r.Getenv)
	if answer.Own == nil {
		return nil
	}
	// Users who come from the login host reach the cluster here, too.
	own, err := pki.ReadKubeconfig(answer.Own)
	if err != nil {
		return err
	}
	r.identities.Kubeconfig, r.identities.Key, err = identity.UserKubeconfig(r.contextName(), own.Server, own.Authority, pki.Pair{Cert: own.Cert, Key: own.Key})
	if err != nil {
		return err
	}
	return errors.Join(r.writeKubeconfig(), r.recordControlNodes())
}

func (r *run) reportReady(ctx context.Context) error {
	if r.plan.Control() {
		if err := r.supervisor.Await(ctx, "control"); err != nil {
			return err
		}
	}
	if err := r.supervisor.Await(ctx, "node"); err != nil {
		return err
	}
	r.members.mu.Lock()
	r.members.ready = true
	r.members.mu.Unlock()
	r.members.reportReady(ctx)
	return nil
}

// stay follows the head once this node has its plan. It ends the run when the
// head ends it or is gone.
func (r *run) stay(ctx context.Context, end context.CancelCauseFunc) {
	again := hello{Version: cluster.Version(), Offer: cluster.Offer{RunID: r.plan.RunID}, Returning: true}
	r.members.moved = func(head string) {
		if err := r.noteHead(head); err != nil {
			r.Log.Warn(err.Error())
		}
	}
	do := func(order errand) { go r.runErrand(ctx, r.members.head(), order) }
	if err := r.members.followHead(ctx, again, do); !errors.Is(context.Cause(ctx), errLeads) {
		end(err)
	}
}

func (m *members) join(ctx context.Context, offer cluster.Offer, cpus int) (welcome, error) {
	m.introduced = true
	// The wait for the head is limited. Once connected, this node waits as long
	// as the head does.
	limited, cancel := m.waiting(ctx)
	defer cancel()
	if err := m.connect(limited); err != nil {
		return welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	head := hostnet.HostOf(m.head().RemoteAddr())
	bound := m.data
	if !bound.Address.IsValid() {
		// If a host has several addresses, the other nodes expect packets from
		// the local address of the connection to the head.
		bound.Address = hostnet.HostOf(m.head().LocalAddr())
	}
	var err error
	if m.sockets, err = bound.Open(cpus, head); err != nil {
		return welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	offer.MeshMTU = m.data.MTU
	if !m.data.Address.IsValid() {
		if offer.MeshMTU, err = overlay.MTU([]netip.Addr{head}); err != nil {
			return welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
		}
	}
	answer, err := m.introduce(ctx, hello{
		Version: cluster.Version(), Offer: offer,
		Address: m.data.Address, Ports: m.sockets.Ports,
	})
	return answer, exitcode.Wrap(exitcode.Unavailable, err)
}

// connect finds the head and stores the connection.
func (m *members) connect(ctx context.Context) error {
	head, err := m.findHead(ctx)
	if err != nil {
		return err
	}
	if !m.setPeer(&m.leader, head) {
		head.Close("this node has left")
		return errors.New("this node has left")
	}
	return nil
}

// oneFamily drops IPv6 addresses if there are IPv4 addresses. The address that a
// node uses to connect to the head is its address for all nodes. A node that
// connected by IPv4 does not reach one that connected by IPv6.
func oneFamily(addresses []netip.Addr) []netip.Addr {
	var four []netip.Addr
	for _, address := range addresses {
		if address.Unmap().Is4() {
			four = append(four, address)
		}
	}
	if len(four) > 0 {
		return four
	}
	return addresses
}

// introduce sends a hello to the head and receives the answer.
func (m *members) introduce(ctx context.Context, said hello) (answer welcome, err error) {
	if err := m.head().Send(ctx, said); err != nil {
		return answer, err
	}
	err = m.head().Receive(ctx, &answer)
	return answer, err
}

// followHead receives errands from the head and calls do with each, which must
// not block. If the connection is lost, it reconnects with the given hello. It
// returns the error when the head closes the connection or stays lost.
func (m *members) followHead(ctx context.Context, again hello, do func(errand)) error {
	for {
		var order errand
		err := m.head().Receive(ctx, &order)
		var lost *rendezvous.LostError
		if errors.As(err, &lost) {
			if m.reconnect(ctx, again, lost) == nil {
				continue
			}
			settle(ctx)
			if m.failover != nil {
				return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w; it has not come back, and no other node has taken the run over: of %d control planes two must reach each other", lost, cluster.ControlNodes))
			}
			return exitcode.Wrap(exitcode.Unavailable, lost)
		} else if err != nil {
			return err
		}
		do(order)
	}
}

// reconnect connects to the lost head or its successor.
func (m *members) reconnect(ctx context.Context, again hello, lost *rendezvous.LostError) error {
	address := m.head().RemoteAddr()
	if m.failover == nil && !lost.Silent() && refused(address) {
		return lost // the head is dead: nobody listens any more
	}
	m.log.Warn(fmt.Sprintf("%v; looking for it", lost))
	ctx, cancel := context.WithTimeout(ctx, returnLimit)
	defer cancel()
	// The listener of a process that was just killed may outlive its connections
	// for a moment, so check more than once.
	if m.failover == nil {
		go func() {
			for !refused(address) {
				select {
				case <-time.After(betweenKnocks):
				case <-ctx.Done():
					return
				}
			}
			cancel()
		}()
	}
	err := m.connect(ctx)
	if err == nil {
		_, err = m.introduce(ctx, again)
	}
	if err != nil {
		m.log.Debug("cannot return to the head: " + err.Error())
		return err
	}
	m.moved(m.head().Name())
	m.reportReady(ctx)
	return nil
}

// refused reports whether a host refuses connections to an address.
func refused(address net.Addr) bool {
	conn, err := net.DialTimeout("tcp", address.String(), time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// fromNode is the log of another node. It marks its messages, since they go to
// the same terminal.
type fromNode struct {
	slog.Handler
	name string
}

func (f fromNode) Handle(ctx context.Context, record slog.Record) error {
	record.Message = f.name + ": " + record.Message
	return f.Handler.Handle(ctx, record)
}
