package berthd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// refusals reports the connections that the kernel has refused to pods because of policy.flows.
type refusals struct {
	// flows is the bound, for the report.
	flows int
	// counts returns the number of packets that were refused for each address since the first
	// pod.
	counts  func(context.Context) (map[netip.Addr]uint64, error)
	pods    *pods
	metrics *metrics
	audit   *audit
	log     *slog.Logger
	// last holds the counts of the previous look.
	last map[netip.Addr]uint64
}

// refusalsPeriod is the time between two looks, and so the shortest time between two lines about
// a pod.
const refusalsPeriod = 10 * time.Second

// run looks at the counts until the context ends.
func (r *refusals) run(ctx context.Context) error {
	return repeat(ctx, refusalsPeriod, func() {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("count refused connections", "error", err)
		}
	})
}

// repeat calls do once in each period until the context ends. Then it returns nil.
func repeat(ctx context.Context, period time.Duration, do func()) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			do()
		}
	}
}

// look reports what was refused since the previous look.
func (r *refusals) look(ctx context.Context) error {
	counts, err := r.counts(ctx)
	if err != nil {
		return err
	}
	for address, count := range counts {
		// The counts start again after the last pod.
		more := count
		if former := r.last[address]; former <= count {
			more -= former
		}
		if more == 0 {
			continue
		}
		r.metrics.refuseFlows(more)
		a, here := r.pods.at(address)
		if !here {
			continue
		}
		why := fmt.Errorf("policy.flows: %d packets of further connections were refused: a pod may have %d connections", more, r.flows)
		r.audit.write(auditLimited, a, why)
		r.log.Warn("a limit refuses connections of a pod", "job", a.ID(), "user", a.User, "address", address, "reason", why)
	}
	r.last = counts
	return nil
}

// at returns the allocation of the pod here with an address of either family.
func (p *pods) at(address netip.Addr) (siteconf.Allocation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, local := range p.local {
		pod, _ := local.here(p.node).On(p.node)
		if pod.Address == address || p.config.IPv6.Dual() && p.config.IPv6.Second(pod.Address) == address {
			return local.Allocation, true
		}
	}
	return siteconf.Allocation{}, false
}
