package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/network/policy"
)

const (
	// sharesPeriod is the time between two checks of the number of entries in conntrack. In
	// that time, a pod cannot fill the table with answered connections. If the table is full,
	// the kernel replaces unanswered ones.
	sharesPeriod = time.Second
	// streamsToDNS bounds the TCP connections of one pod to the node's name server. A pod
	// needs one for a moment, for an answer that is too long for UDP.
	streamsToDNS = 128
	// queriesToDNS is the number of queries per second to the name server beyond which the
	// queries of a pod count as a flood.
	queriesToDNS = 20_000
	// maxNamed bounds the notices of one kind. A container with NET_RAW can send with
	// ever more addresses.
	maxNamed = 20
	// namedFor is the time after which an address that no check found is forgotten, and may
	// be named again: another pod may have it then.
	namedFor = 10 * time.Minute
)

// podShares keeps one pod from taking all places of conntrack, or all TCP connections to
// the node's name server, and names a pod that floods the name server.
type podShares struct {
	plan   cluster.Plan
	log    *slog.Logger
	notice func(string)
	nft    func(ctx context.Context, path string) error
	// setting reads a setting of conntrack, such as max. count returns the number of
	// entries for each address that has opened connections.
	setting func(name string) (int, error)
	count   func() (map[netip.Addr]int, error)
	// floods and rejected return the pods whose queries, or connections, the name server
	// does not get.
	floods, rejected func() ([]netip.Addr, error)

	full []netip.Addr // pods that the rules in force permit no further connections
	// said, flooded and connected hold the pods that notices have named.
	said, flooded, connected naming
}

// naming holds the pods that notices of one kind have named.
type naming struct {
	last    map[netip.Addr]time.Time // when a check last found the pod
	notices int
}

func newPodShares(plan cluster.Plan, o Options) *podShares {
	return &podShares{
		plan: plan, log: o.Log, notice: o.Notifier.Notice, nft: runNft,
		setting: trackedSetting, count: policy.CountConnections, floods: policy.FloodingPods, rejected: policy.RejectedPods,
		said: newNaming(), flooded: newNaming(), connected: newNaming(),
	}
}

func newNaming() naming { return naming{last: map[netip.Addr]time.Time{}} }

func trackedSetting(name string) (int, error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
	if err != nil {
		return 0, fmt.Errorf("read the size of conntrack: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// run loads the rules, and then checks the shares of conntrack and looks for floods until
// ctx ends. It does without the rules that the kernel refuses: pods work without them.
func (s *podShares) run(ctx context.Context) {
	rules := s.rules(nil)
	checks := map[string]func(context.Context) error{} // by the text of their errors
	for _, share := range []struct {
		name, script, without, unchecked string
		check                            func(context.Context) error
	}{
		{"streams", rules.Streams(), "Pods have no bound of TCP connections to the name server", "Pods with too many TCP connections to the name server are not named", s.nameRejected},
		{"floods", rules.Floods(), "Floods of queries to the name server are not dropped", "Pods that flood the name server are not named", s.nameFloods},
		{"shares", rules.Connections(), "Pods have no shares of conntrack", "Pods have no shares of conntrack", s.look},
	} {
		if err := s.load(ctx, share.name, share.script); err != nil {
			s.log.Warn(share.without, "error", err)
			continue
		}
		checks[share.unchecked] = share.check
	}
	logged := map[string]string{}
	for pause := sharesPeriod; len(checks) > 0; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		for unchecked, check := range checks {
			if err := check(ctx); err != nil && ctx.Err() == nil && err.Error() != logged[unchecked] {
				logged[unchecked] = err.Error()
				s.log.Warn(unchecked, "error", err)
			}
		}
		// It takes about a second to read a full table.
		pause = max(sharesPeriod, 10*time.Since(began))
	}
}

// nameFloods names each pod whose queries the rules drop.
func (s *podShares) nameFloods(context.Context) error {
	return s.nameListed(&s.flooded, s.floods, fmt.Sprintf("dropped DNS queries of pod %%v: it sent more than %d in a second", queriesToDNS))
}

// nameRejected names each pod whose connections to the name server the rules refuse.
func (s *podShares) nameRejected(context.Context) error {
	return s.nameListed(&s.connected, s.rejected, fmt.Sprintf("reset connections of pod %%v to the name server: it has %d already", streamsToDNS))
}

// nameListed names the pods of this node in a list.
func (s *podShares) nameListed(n *naming, list func() ([]netip.Addr, error), text string) error {
	sources, err := list()
	if err != nil {
		return err
	}
	s.name(n, slices.DeleteFunc(sources, func(source netip.Addr) bool {
		return !slices.ContainsFunc(s.plan.Addresses.Families(), func(f cluster.Family) bool { return f.NodePods.Contains(source) })
	}), text)
	return nil
}

// name sends a notice with text for each of the pods that n does not hold, up to maxNamed
// notices.
func (s *podShares) name(n *naming, pods []netip.Addr, text string) {
	now := time.Now()
	maps.DeleteFunc(n.last, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) > namedFor })
	for _, pod := range pods {
		if _, named := n.last[pod]; !named {
			if n.notices == maxNamed {
				continue
			}
			n.notices++
			said := fmt.Sprintf(text, pod)
			if n.notices == maxNamed {
				said += "; no further pods are named"
			}
			s.notice(said)
		}
		n.last[pod] = now
	}
}

// look updates the rules for the pods that have used up their share. If conntrack is at
// most half full, there are no such pods, and look does not read the entries.
func (s *podShares) look(ctx context.Context) error {
	limit, err1 := s.setting("max")
	used, err2 := s.setting("count")
	switch err := errors.Join(err1, err2); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // until the first rule needs conntrack
	case err != nil:
		return err
	}
	var full []netip.Addr
	if used > limit/2 && limit > 0 {
		counts, err := s.count()
		if err != nil {
			return err
		}
		full = s.over(counts, limit)
	}
	s.name(&s.said, full, fmt.Sprintf("delayed new connections of pod %%v: it has its share of the %d that the kernel remembers", limit))
	if slices.Equal(full, s.full) {
		return nil
	}
	if err := s.load(ctx, "shares", s.rules(full).Connections()); err != nil {
		return err
	}
	s.full = full
	return nil
}

// over returns the pods that have used up their share. Connections that were opened by
// others, such as the node, count for no pod.
func (s *podShares) over(counts map[netip.Addr]int, limit int) []netip.Addr {
	ofPod, others := map[netip.Addr]int{}, 0
	for source, count := range counts {
		if slices.ContainsFunc(s.plan.Addresses.Families(), func(f cluster.Family) bool { return f.Pods.Contains(source) }) {
			ofPod[source] = count
		} else {
			others += count
		}
	}
	return policy.OverShare(ofPod, others, limit)
}

func (s *podShares) rules(full []netip.Addr) policy.Shares {
	return policy.Shares{Links: []string{cluster.PodBridge, cluster.OverlayLink}, Names: streamsToDNS, Queries: queriesToDNS, Full: full}
}

func (s *podShares) load(ctx context.Context, name, script string) error {
	path := filepath.Join(s.plan.Paths.Run, name+".nft")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		return fmt.Errorf("write rules for shares: %w", err)
	}
	return s.nft(ctx, path)
}
