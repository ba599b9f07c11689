package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// Step identifies the job step whose tasks meet. Every node must have the same
// values.
type Step struct {
	Cluster string `json:"cluster,omitempty"`
	Job     string `json:"job"`
	Step    int    `json:"step"`
	// Attempt counts the starts of a job that Slurm requeued
	// (SLURM_RESTART_COUNT).
	Attempt int `json:"attempt,omitempty"`
	// Joining is set where nodes of other jobs join the step later. They meet the head at
	// other ports, and no credential is valid for both.
	Joining bool `json:"joining,omitempty"`
}

func (s Step) String() string {
	text := fmt.Sprintf("%s.%d", s.Job, s.Step)
	if s.Joining {
		text += ", which nodes of other jobs may join"
	}
	if s.Attempt > 0 {
		text += fmt.Sprintf(" (restart %d)", s.Attempt)
	}
	return text
}

// Config describes a step to one of its tasks. Zero durations and sizes select the
// defaults.
type Config struct {
	Step Step
	// Nodes lists all nodes of the step. The first is the head.
	Nodes []string
	// Node is the node of this task.
	Node   string
	Prover Prover
	// Addresses returns the source addresses of a node. The head closes a
	// connection from any other address unread, and accepts a node only from the
	// node's addresses. If Addresses is nil, only the credentials decide.
	Addresses func(ctx context.Context, node string) ([]netip.Addr, error)

	// Admit decides about a node whose name is not in Nodes and that has proved itself to
	// the head. from is its address. An error refuses the node, which may try again
	// unless the error is Final. If Admit is nil, the head refuses all such nodes.
	Admit func(ctx context.Context, node string, from netip.Addr) error

	// Ports and Candidates limit the ports that the head may listen on. The
	// defaults are DefaultPorts and 8 candidates.
	Ports      PortRange
	Candidates int
	// Bind is the address that the head listens on. If invalid, the head listens on
	// all addresses of the host.
	Bind netip.Addr

	// From is another address of this host, besides the one that the route to the head
	// selects, which Join also connects from. It may be invalid.
	From netip.Addr

	// Loss is the silence after which a peer counts as lost. The default is 10 s.
	// It must be the same on all nodes, because each sends four heartbeats within
	// it.
	Loss time.Duration
	// Handshake limits the time from a connection to its acceptance. The default is
	// 60 s, because a munge that hangs has to fail with its own error before.
	Handshake time.Duration
	// MaxMessage limits the size of a message, in bytes. The default is 1 MiB.
	MaxMessage int
	// MaxPending limits the pending connections at the head. The default is 256.
	// One address may have a quarter of them.
	MaxPending int

	Log *slog.Logger
}

const (
	defaultCandidates = 8
	defaultLoss       = 10 * time.Second
	defaultHandshake  = 60 * time.Second
	// DefaultMaxMessage is the largest message between two nodes, in bytes.
	DefaultMaxMessage = 1 << 20
	defaultMaxPending = 256
)

// withDefaults returns the configuration with all defaults filled in. The error
// lists all mistakes.
func (c Config) withDefaults() (Config, error) {
	if c.Ports == (PortRange{}) {
		c.Ports = DefaultPorts()
	}
	if c.Candidates == 0 {
		c.Candidates = defaultCandidates
	}
	if c.Loss == 0 {
		c.Loss = defaultLoss
	}
	if c.Handshake == 0 {
		c.Handshake = defaultHandshake
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = DefaultMaxMessage
	}
	if c.MaxPending == 0 {
		c.MaxPending = defaultMaxPending
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, c.validate()
}

func (c Config) validate() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Step.Job == "" {
		wrong("the job has no id")
	}
	if c.Prover == nil {
		wrong("there is no prover")
	}
	if len(c.Nodes) == 0 {
		wrong("the step has no nodes")
	} else if !slices.Contains(c.Nodes, c.Node) {
		wrong("this node (%q) is not one of the step's (%v)", c.Node, c.Nodes)
	}
	seen := map[string]bool{}
	for _, node := range c.Nodes {
		if node == "" || seen[node] {
			wrong("the name %q is empty or twice among the step's nodes", node)
		}
		seen[node] = true
	}
	if err := c.Ports.validate(); err != nil {
		problems = append(problems, err)
	}
	if c.Candidates < 0 || c.Loss < 0 || c.Handshake < 0 || c.MaxMessage < 0 || c.MaxPending < 4 {
		wrong("a number is negative, or fewer than 4 pending connections are allowed")
	}
	if len(problems) > 0 {
		return fmt.Errorf("read the configuration of the rendezvous: %w", errors.Join(problems...))
	}
	return nil
}

// head returns the node that the others join.
func (c Config) head() string { return c.Nodes[0] }

func (c Config) candidates() []uint16 { return candidates(c.Step, c.Ports, c.Candidates) }
