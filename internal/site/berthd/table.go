package berthd

import (
	"maps"
	"slices"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/siteconf"
)

// addNames adds the pods of an allocation, and the names that they have.
func addNames(t *nametable.Table, a siteconf.Allocation, all map[store.Part]store.GivenNames) {
	names := all[store.PartOf(a, "")].Names
	for i, pod := range a.Pods {
		if !pod.Address.IsValid() {
			continue
		}
		t.Pods = append(t.Pods, nametable.Pod{
			Address: pod.Address, Network: a.VNI, UID: a.UID, User: a.UserLabel(), Name: a.JobLabel(), Number: a.Job, Index: i, After: a.After,
			Names: names, Served: all[store.PartOf(a, pod.Node)].Names,
		})
		names = nil
	}
}

// table returns the names in all networks with a pod here, or nil if there is no pod.
func (p *pods) table() *nametable.Table {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.local) == 0 {
		return nil
	}
	owners := map[string]bool{}
	for _, local := range p.local {
		owners[local.Owner()] = true
	}
	t := &nametable.Table{Cluster: p.config.Cluster, Range: p.config.Pods.Masked(), IPv6: p.config.IPv6.Pods.Masked()}
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		known := p.known(owner)
		var names map[store.Part]store.GivenNames
		if f := p.watch.network(owner); f != nil {
			names = f.allNames()
		}
		for _, job := range slices.Sorted(maps.Keys(known)) {
			addNames(t, known[job], names)
		}
	}
	return t
}
