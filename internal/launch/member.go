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
	"berth.dev/berth/internal/network/overlay"
)

const (
	// signalTimeout is how long a node waits for the head's word once a signal
	// came: longer than any workload has to end. A head that is gone shows
	// otherwise.
	signalTimeout = ownGrace
	// returnLimit is how long a node tries to return to the head. Meanwhile it
	// asks every betweenKnocks whether the head is dead.
	returnLimit   = time.Minute
	betweenKnocks = 300 * time.Millisecond
)

// work is a run on a node that is not the head: it becomes what the head tells
// it to be, until the head says that all is over. Where it leads the run in the
// end, it returns the workload's exit code.
func (r *run) work(ctx context.Context) (code int, err error) {
	// Slurm's signals come to all nodes at once. The head asks the workload to
	// end, which needs its nodes meanwhile.
	var joined atomic.Bool
	signalled := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(signalled, func() {
		cause := context.Cause(signalled)
		var reason *interrupted
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
				return 0, nil // the head has said why
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

// join finds the head and asks it what this node is to be.
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
		// A folder that is mounted when somebody looks, as those of CVMFS are, has to
		// be there before the sandbox is. What is missing is said later.
		_ = a.here()
	}
	r.identities.nodes = append(r.identities.nodes, answer.Files)
	r.pulls = readPulls(ctx, r.plan, r.Getenv)
	if answer.Own == nil {
		return nil
	}
	// Whoever comes from the login host reaches the cluster here, too.
	own, err := pki.ReadKubeconfig(answer.Own)
	if err != nil {
		return err
	}
	r.identities.kubeconfig, r.identities.key, err = userKubeconfig(r.contextName(), own.Server, own.Authority, pki.Pair{Cert: own.Cert, Key: own.Key})
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

// stay keeps to the head from the moment on at which this node knows what it
// is to be, and ends the run when the head says that all is over, or is gone.
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
	// Once it has found the head, this node waits as long as that does.
	limited, cancel := m.waiting(ctx)
	defer cancel()
	if err := m.connect(limited); err != nil {
		return welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	head := hostOf(m.head().RemoteAddr())
	bound := m.data
	if !bound.address.IsValid() {
		// Where a host has several addresses, the others expect packets from
		// the one that this node has come from.
		bound.address = hostOf(m.head().LocalAddr())
	}
	var err error
	if m.sockets, err = bound.open(cpus, head); err != nil {
		return welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	offer.MeshMTU = m.data.mtu
	if !m.data.address.IsValid() {
		if offer.MeshMTU, err = overlay.MTU([]netip.Addr{head}); err != nil {
			return welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
		}
	}
	answer, err := m.introduce(ctx, hello{
		Version: cluster.Version(), Offer: offer,
		Address: m.data.address, Ports: m.sockets.ports,
	})
	return answer, exitcode.Wrap(exitcode.Unavailable, err)
}

// connect finds the head.
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

// oneFamily drops IPv6 addresses where there are others. The address at which a
// node comes to the head is where it is reached by all, and a node that came by
// IPv4 does not reach one that came by IPv6.
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

// introduce says who this is, and hears the head's answer.
func (m *members) introduce(ctx context.Context, said hello) (answer welcome, err error) {
	if err := m.head().Send(ctx, said); err != nil {
		return answer, err
	}
	err = m.head().Receive(ctx, &answer)
	return answer, err
}

// followHead returns the error that says how the head ended the connection, or that
// it is gone. A head that is lost is looked for with the given words. What it
// asks for is given to do, which does not wait.
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

// reconnect connects to a head that was lost.
func (m *members) reconnect(ctx context.Context, again hello, lost *rendezvous.LostError) error {
	address := m.head().RemoteAddr()
	if m.failover == nil && !lost.Silent() && refused(address) {
		return lost // dead: nobody listens any more
	}
	m.log.Warn(fmt.Sprintf("%v; looking for it", lost))
	ctx, cancel := context.WithTimeout(ctx, returnLimit)
	defer cancel()
	// Of a process that was just killed, the listener may live a moment longer
	// than the connections.
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

// refused tells whether a host answers that nobody listens at an address.
func refused(address net.Addr) bool {
	conn, err := net.DialTimeout("tcp", address.String(), time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// fromNode is a log of another node, whose words come to the same terminal.
type fromNode struct {
	slog.Handler
	name string
}

func (f fromNode) Handle(ctx context.Context, record slog.Record) error {
	record.Message = f.name + ": " + record.Message
	return f.Handler.Handle(ctx, record)
}
