package fastpath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// Switch answers the trapped calls of a node's pods.
type Switch struct {
	config      Config
	checks      checks
	reactor     *reactor
	state       *state
	diagLock    sync.Mutex // of diag
	diag        *linux.SocketDiag
	inside      *inside
	peers       []*peer  // by node; nil for those without a Switch
	inward      [][]byte // keys of connections from nodes
	hostNetwork uint64
	counters    counters
	habits      habits
	files       []*os.File
	lifeline    *os.File
	fdHolder    *record
	// resumed holds the unanswered calls of a predecessor.
	resumed []*trap
	// lost holds pods whose filters died with a predecessor.
	lost    []netip.Addr
	orphans orphans

	// accepting has locks for listeners, chosen by cookie.
	accepting [64]sync.Mutex

	// callers has locks for calling threads, chosen by number (exclude).
	callers [256]sync.Mutex

	sweepTimer, tidyTimer, signalTimer *time.Timer

	mu         sync.Mutex
	pods       map[netip.Addr]*pod
	parked     map[bellKey]*parked
	queues     map[uint64]*queue // by the cookie of a listener
	waiting    map[*waiting]struct{}
	connecting map[*connecting]struct{}
	pending    map[*pendingConn]struct{}
	known      map[uint64]*record // by cookie
	sticks     map[stick]*record
	// forgetAt and sticksAt are sizes of known and sticks. Larger maps lose their expired
	// records.
	forgetAt, sticksAt   int
	forget               bool // sockets that are closed
	tidied               time.Time
	signalsTook          time.Duration
	sweeping, signalsDue bool
	closed               bool
}

// New makes a Switch in the current network namespace, which must be the host's. It takes
// over from a predecessor with the same state.
func New(c Config) (*Switch, error) { return newSwitch(c, enforced{}) }

func newSwitch(c Config, with checks) (*Switch, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configure the fast path: %w", err)
	}
	s := &Switch{
		config: c, checks: with, lifeline: c.Lifeline, inside: &inside{conn: c.Inside}, inward: make([][]byte, len(c.Nodes)),
		pods: map[netip.Addr]*pod{}, parked: map[bellKey]*parked{},
		queues: map[uint64]*queue{}, waiting: map[*waiting]struct{}{}, connecting: map[*connecting]struct{}{}, pending: map[*pendingConn]struct{}{},
		habits: habits{of: map[netip.AddrPort]*habit{}}, known: map[uint64]*record{}, sticks: map[stick]*record{}, forgetAt: minKnown, sticksAt: minSticks,
	}
	s.sweepTimer, s.tidyTimer = time.AfterFunc(time.Hour, s.sweep), time.AfterFunc(time.Hour, s.sweepSoon)
	s.signalTimer = time.AfterFunc(time.Hour, s.checkSignals)
	s.stopTimers()
	steps := []func() error{s.findHost, s.deriveKeys, s.openState, s.succeed, s.open}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("prepare the fast path: %w", err), s.Close())
		}
	}
	return s, nil
}

// findHost finds the cookie of the host's network namespace.
func (s *Switch) findHost() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	s.hostNetwork, err = sock.NetworkCookie(socket)
	unix.Close(socket)
	if err != nil {
		return fmt.Errorf("recognize sockets of the host (Linux 5.14 can): %w", err)
	}
	own := int(s.lifeline.Fd())
	if !linux.SameFile(os.Getpid(), own, os.Getpid(), own) {
		return errNoCompare
	}
	s.diag, err = linux.OpenSocketDiag()
	return err
}

func (s *Switch) deriveKeys() (err error) {
	if s.peers, err = newPeers(s.config); err != nil {
		return err
	}
	for i := range s.config.Nodes {
		if s.inward[i], err = pairKey(s.config.Key, i, s.config.Self); err != nil {
			return fmt.Errorf("derive the key from node %d: %w", i, err)
		}
	}
	return nil
}

func (s *Switch) openState() (err error) {
	if s.state, err = openState(s.config.State); err != nil {
		return err
	}
	s.reactor, err = newReactor()
	return err
}

// open adds the listeners to the reactor.
func (s *Switch) open() error {
	c := &containersSource{s: s}
	if err := s.takeOver(s.config.Containers, c, &c.fd, &c.token); err != nil {
		return err
	}
	for _, listener := range s.config.Listeners {
		d := &peerListener{s: s}
		if err := s.takeOver(listener, d, &d.fd, &d.token); err != nil {
			return err
		}
	}
	return nil
}

// takeOver moves a listener from Go's poller to the reactor, and sets fd and token.
func (s *Switch) takeOver(listener interface {
	File() (*os.File, error)
	Close() error
}, to source, fd *int, token *uint64) error {
	file, err := listener.File()
	if err != nil {
		return fmt.Errorf("take over a socket: %w", err)
	}
	s.files = append(s.files, file)
	*fd = int(file.Fd())
	if err := unix.SetNonblock(*fd, true); err != nil {
		return fmt.Errorf("take over a socket: %w", err)
	}
	if err := s.reactor.add(*fd, unix.EPOLLIN, to, token); err != nil {
		return err
	}
	return listener.Close()
}

// Run answers calls until ctx ends. Later calls wait for a successor with the same state,
// as long as the process that holds the descriptors lives.
func (s *Switch) Run(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	// A worker waits only for the kernel, so a few serve all pods.
	for range max(2, runtime.NumCPU()) {
		group.Go(s.reactor.work)
	}
	group.Go(func() error {
		<-groupCtx.Done()
		s.reactor.stop()
		return nil
	})
	group.Go(func() error {
		s.resumeAll()
		return nil
	})
	return group.Wait()
}

// Lost returns the pods of a predecessor whose calls cannot be answered any more, because
// the process that held the descriptors died too. They have no TCP until their containers
// are created again.
func (s *Switch) Lost() []netip.Addr { return s.lost }

// Close stops the timers. The process must end after it, which closes all descriptors.
func (s *Switch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.stopTimers()
	return nil
}

func (s *Switch) stopTimers() {
	for _, timer := range []*time.Timer{s.sweepTimer, s.tidyTimer, s.signalTimer} {
		timer.Stop()
	}
}
