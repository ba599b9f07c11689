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

// Step names the job step whose tasks meet. All of it must be the same on
// every node.
type Step struct {
	Cluster string `json:"cluster,omitempty"`
	Job     string `json:"job"`
	Step    int    `json:"step"`
	// Attempt counts the starts of a job that Slurm requeued
	// (SLURM_RESTART_COUNT).
	Attempt int `json:"attempt,omitempty"`
}

func (s Step) String() string {
	text := fmt.Sprintf("%s.%d", s.Job, s.Step)
	if s.Attempt > 0 {
		text += fmt.Sprintf(" (restart %d)", s.Attempt)
	}
	return text
}

// Config is a task's view of its step. Zero durations and sizes mean the
// defaults.
type Config struct {
	Step Step
	// Nodes are all nodes of the step; the first is the head.
	Nodes []string
	// Node is the one this task runs on.
	Node   string
	Prover Prover
	// Addresses returns the addresses that a node connects from. The head closes
	// a connection from another address unread, and accepts a node only from the
	// node's addresses. If nil, only the credentials decide.
	Addresses func(ctx context.Context, node string) ([]netip.Addr, error)

	// Ports and Candidates bound the head's choice: DefaultPorts, 8 candidates.
	Ports      PortRange
	Candidates int
	// Bind is the head's address; invalid means all of the host's.
	Bind netip.Addr

	// Loss limits how long a peer may be silent until it counts as lost: 10 s. It
	// must be the same on all nodes, since each sends four heartbeats within it.
	Loss time.Duration
	// Handshake is the longest time from a connection to its acceptance: 10 s.
	Handshake time.Duration
	// MaxMessage bounds a message in bytes: 1 MiB.
	MaxMessage int
	// MaxPending bounds the pending connections at the head: 256. One address may
	// have a quarter of them.
	MaxPending int

	Log *slog.Logger
}

const (
	defaultCandidates = 8
	defaultLoss       = 10 * time.Second
	defaultHandshake  = 10 * time.Second
	defaultMaxMessage = 1 << 20
	defaultMaxPending = 256
)

// withDefaults returns the configuration with nothing left open, or all that
// is wrong with it.
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
		c.MaxMessage = defaultMaxMessage
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

// head is the node that the others join.
func (c Config) head() string { return c.Nodes[0] }

func (c Config) candidates() []uint16 { return Candidates(c.Step, c.Ports, c.Candidates) }
