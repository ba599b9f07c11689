package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

// PilotConfig is the configuration of a node of another job.
type PilotConfig struct {
	// Join identifies the cluster, and Head is the host of its head.
	Join rendezvous.Step
	Head string
	// Job and Host are the job and the host of this node.
	Job, Host string
	Prover    rendezvous.Prover
	Ports     rendezvous.PortRange
	// Addresses returns the addresses of a host.
	Addresses func(ctx context.Context, host string) ([]netip.Addr, error)
	// Wait bounds the wait for the head; 0 means the default.
	Wait time.Duration
	// HeadWait bounds the time that the node goes on without a head. Again returns the
	// configuration for the next head once there is one, and an error that wraps
	// ErrClusterOver if there will be none.
	HeadWait time.Duration
	Again    func(ctx context.Context) (PilotConfig, error)
	Log      *slog.Logger
}

// rendezvous returns the configuration for a connection to the head.
func (c PilotConfig) rendezvous() rendezvous.Config {
	name := c.Host + "-" + c.Job
	return rendezvous.Config{
		Step: c.Join, Nodes: []string{c.Head, name}, Node: name, Prover: c.Prover,
		Ports: c.Ports, Loss: lossLimit, Addresses: c.Addresses,
	}
}

// NewPilot returns the members of a run as a node of another job sees them, which takes a
// seat.
func NewPilot(config PilotConfig) *Members {
	return &Members{
		roster:  roster{config: config.rendezvous(), elastic: true},
		network: newNetwork(config.Ports, ""),
		pilot:   true,
		back:    &wayBack{wait: config.HeadWait, again: config.Again},
		wait:    cmp.Or(config.Wait, gatherLimit), log: config.Log,
	}
}

// IsPilot reports whether this node belongs to another job than the cluster.
func (m *Members) IsPilot() bool { return m.pilot }

// Meet connects to the head and returns the options of the cluster.
func (m *Members) Meet(ctx context.Context) (cluster.Spec, error) {
	m.introduced = true
	m.config.From = m.data.Address // of the interface that the user names
	limited, cancel := m.waiting(ctx)
	defer cancel()
	if err := m.connect(limited); err != nil {
		return cluster.Spec{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	var said greeting
	if err := m.head().Receive(limited, &said); err != nil {
		return cluster.Spec{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if said.Version != cluster.Version() {
		return cluster.Spec{}, exitcode.Wrap(exitcode.Config, fmt.Errorf("join the cluster of job %s: it has berth %s, this node %s: use the same one", m.config.Step.Job, said.Version, cluster.Version()))
	}
	m.back.expected = said.Returns
	var err error
	if m.data.Fast, err = hostnet.WantsFastPath(said.Spec.Network.FastPath); err != nil {
		m.log.Debug("connections of pods are not made by the hosts: " + err.Error())
	}
	return said.Spec, nil
}

// EndsInOrder reports whether the head closed the connection to a node of another job because
// the node had left, or because the cluster ended.
func EndsInOrder(err error) bool {
	closed, ok := errors.AsType[*rendezvous.ClosedError](err)
	return ok && !closed.Here && (closed.Reason == errLeft.Error() || closed.Reason == RunEnded)
}

// RequestLeave asks the head to let this node leave. Its pods have grace to end. The head
// closes the connection when the node has left.
func (m *Members) RequestLeave(ctx context.Context, grace time.Duration) error {
	return m.head().Send(ctx, statusMessage{Leaving: &grace})
}
