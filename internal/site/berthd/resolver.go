package berthd

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/siteconf"
)

// resolver returns the file that a job's tasks see as /etc/resolv.conf.
func (d *Daemon) resolver(id string) string { return filepath.Join(d.config.Run, "resolv", id) }

// resolverAddress returns the address of the pods' name server. With CNI plugins there is no
// gateway address of each node, so it is the host's address.
func (d *Daemon) resolverAddress() netip.Addr {
	if d.config.ByCNI() {
		return d.host
	}
	return d.config.Gateway()
}

func (d *Daemon) writeResolver(a siteconf.Allocation) error {
	if d.config.DNS.Program == "" {
		return nil
	}
	search := d.config.DNS.Search
	if search == nil {
		host, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("read the host's resolver: %w", err)
		}
		search = searchOf(string(host))
	}
	// ndots:2 makes the resolver try a name with one dot, pod0.job, in the user's domain first.
	text := fmt.Sprintf("nameserver %s\nsearch %s\noptions ndots:2\n", d.resolverAddress(), strings.Join(a.Domains(d.config.Cluster, search), " "))
	if err := os.WriteFile(d.resolver(a.ID()), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write resolver of %s: %w", a.ID(), err)
	}
	return nil
}

// searchOf returns the search domains of a resolv.conf, whose last such line counts.
func searchOf(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == "search" || fields[0] == "domain") {
			found = fields[1:]
		}
	}
	return found
}

// addNames adds the pods of an allocation, and the names that they have.
func addNames(t *nametable.Table, a siteconf.Allocation, all map[nameOwner]givenNames) {
	names := all[nameOwner{id: a.ID(), after: a.After}].names
	for i, pod := range a.Pods {
		if !pod.Address.IsValid() {
			continue
		}
		t.Pods = append(t.Pods, nametable.Pod{
			Address: pod.Address, Network: a.VNI, UID: a.UID, User: a.UserLabel(), Name: a.JobLabel(), Number: a.Job, Index: i, After: a.After,
			Names: names, Served: all[nameOwner{a.ID(), a.After, pod.Node}].names,
		})
		names = nil
	}
}

// table returns the names in all networks with a pod here, or nil if there is no pod.
func (d *Daemon) table() *nametable.Table {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.local) == 0 {
		return nil
	}
	owners := map[string]bool{}
	for _, local := range d.local {
		owners[local.Owner()] = true
	}
	t := &nametable.Table{Cluster: d.config.Cluster, Range: d.config.Pods.Masked(), IPv6: d.config.IPv6.Pods.Masked()}
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		known := d.known(owner)
		var names map[nameOwner]givenNames
		if user := d.users[owner]; user != nil {
			names = user.allNames()
		}
		for _, job := range slices.Sorted(maps.Keys(known)) {
			addNames(t, known[job], names)
		}
	}
	return t
}
