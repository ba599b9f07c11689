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
	"berth.dev/berth/internal/network/share"
)

// Switch answers the trapped calls of a node's pods. Its parts hold the state: outbound and
// inbound the connections in progress, listeners the waiting calls of accept, sockets the
// switched sockets, and control the state of nodes and policies.
type Switch struct {
	*shared
	config    Config
	control   *control
	pods      *pods
	sockets   *sockets
	outbound  *outbound
	inbound   *inbound
	listeners *listeners
	fdHolder  *fdHolder
	files     []*os.File

	// resumed holds the unanswered calls of a predecessor.
	resumed []*trap
	// lost holds pods whose filters died with a predecessor.
	lost    []netip.Addr
	orphans orphans

	// crowded holds the warnings that warnOfShare has logged.
	crowded    sync.Map
	sweepAlarm *alarm
	tidyTimer  *time.Timer

	mu     sync.Mutex
	tidied time.Time
}

// New returns a Switch in the current network namespace, which must be the host's. It takes
// over from a predecessor that had the same Config.State. It returns an error if the
// configuration is invalid or the kernel lacks a feature.
func New(c Config) (*Switch, error) { return newSwitch(c, enforced{}) }

func newSwitch(c Config, with checks) (*Switch, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configure the fast path: %w", err)
	}
	s := &Switch{config: c, shared: &shared{log: c.Log, checks: with, inside: &inside{conn: c.Inside}, losesAnswers: linux.MayLoseAnswers()}}
	s.sweepAlarm = newAlarm(s.sweep)
	s.tidyTimer = time.AfterFunc(time.Hour, s.sweepSoon)
	s.tidyTimer.Stop()
	steps := []func() error{s.findHost, s.openState, s.makeParts, s.succeed, s.open}
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
	own := int(s.config.Lifeline.Fd())
	if !linux.SameFile(os.Getpid(), own, os.Getpid(), own) {
		return errNoCompare
	}
	return nil
}

func (s *Switch) openState() (err error) {
	if s.state, err = openState(s.config.State); err != nil {
		return err
	}
	s.state.refused = s.warnOfShare
	s.reactor, err = newReactor()
	return err
}

// warnOfShare warns once for each pod that has used up its share of the records.
func (s *Switch) warnOfShare(k kind, pod netip.Addr) {
	text := fmt.Sprintf("left connections of pod %v to the overlay: it has its share of the fast path", pod)
	if k == kindCall {
		text = fmt.Sprintf("refused calls of pod %v: too many of its threads wait for a connection", pod)
	}
	if _, known := s.crowded.LoadOrStore(text, true); !known {
		s.log.Warn(text)
	}
}

// makeParts creates the parts that hold the state.
func (s *Switch) makeParts() (err error) {
	if s.control, err = newControl(s.config, s.checks); err != nil {
		return err
	}
	peers, err := newPeers(s.config)
	if err != nil {
		return err
	}
	diag, err := linux.OpenSocketDiag()
	if err != nil {
		return err
	}
	s.fdHolder = &fdHolder{shared: s.shared, lifeline: s.config.Lifeline}
	s.pods = &pods{byAddress: map[netip.Addr]*pod{}}
	s.sockets = newSockets(s.shared, s.pods, diag, s.sweepAlarm)
	s.outbound = &outbound{
		shared: s.shared, config: s.config, control: s.control, pods: s.pods, sockets: s.sockets, peers: peers,
		habits: habits{of: map[netip.AddrPort]*habit{}}, affinity: newAffinity(s.state), sweep: s.sweepAlarm,
		connecting: map[*connecting]struct{}{},
	}
	parked, err := maxParked()
	if err != nil {
		return err
	}
	s.inbound = &inbound{
		places: share.New(parked),
		shared: s.shared, control: s.control, pods: s.pods, sockets: s.sockets, sweep: s.sweepAlarm,
		pending: map[*incoming]struct{}{}, parked: map[bellKey]*incoming{},
	}
	s.listeners = newListeners(s.inbound)
	return nil
}

// open adds the listeners to the reactor.
func (s *Switch) open() error {
	c := &containersSource{s: s}
	if err := s.takeOver(s.config.Containers, c, &c.fd, &c.token); err != nil {
		return err
	}
	for _, listener := range s.config.Listeners {
		d := &peerListener{in: s.inbound}
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
		group.Go(func() error { return withoutSignals(s.reactor.work) })
	}
	group.Go(func() error {
		<-groupCtx.Done()
		s.reactor.stop()
		return nil
	})
	group.Go(func() error {
		return withoutSignals(func() error {
			s.resumeAll()
			return nil
		})
	})
	return group.Wait()
}

// Lost returns the pods of a predecessor whose calls cannot be answered any more, because
// the process that held the descriptors died too. They have no TCP until their containers
// are created again.
func (s *Switch) Lost() []netip.Addr { return s.lost }

// Counters returns the nonzero counters since the start, by description.
func (s *Switch) Counters() map[string]uint64 { return s.counters.nonzero() }

// Close stops the timers. The process must end after it, which closes all descriptors.
func (s *Switch) Close() error {
	s.sweepAlarm.close()
	s.tidyTimer.Stop()
	if s.listeners != nil {
		s.listeners.waiting.signals.close()
	}
	return nil
}
