package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"

	"berth.dev/berth/programs/coredns/nametable"
)

// table answers questions from the table that berthd has written.
type table struct{ nametable.Table }

// validate returns an error if an address is of another family than answers need, or
// the domain cannot be in an answer.
func (t *table) validate() error {
	if _, ok := dns.IsDomainName(authority(t.Cluster + ".")); !ok {
		return fmt.Errorf("%q is no domain", t.Cluster)
	}
	if t.IPv6.IsValid() && !t.IPv6.Addr().Is6() {
		return fmt.Errorf("%s is no IPv6 range", t.IPv6)
	}
	for _, p := range t.Pods {
		if !p.Address.Is4() {
			return fmt.Errorf("pod %d.%s.%s has no IPv4 address: %s", p.Index, p.Name, p.User, p.Address)
		}
	}
	return nil
}

// answer is the result of looking up a name.
type answer struct {
	// ours reports whether the name is in a zone that only this server answers for.
	ours      bool
	zone      string
	exists    bool
	addresses []netip.Addr
	// name is the name of the address in a reverse query.
	name string
}

// serves reports whether an asker gets answers: a pod, or the host of this server, which
// asks from the server's own address. The whole site may be able to reach that address,
// but nobody else needs this server, least of all to forward queries.
func (t *table) serves(asker, server netip.Addr) bool {
	return asker == server || t.Range.Contains(asker)
}

// find looks up a name for an asker. A pod sees only the pods in its network; the host of
// the server sees all pods.
func (t *table) find(name string, asker, server netip.Addr) answer {
	name = strings.ToLower(name)
	zone := t.Cluster + "."
	if name == zone {
		return answer{ours: true, zone: zone, exists: true}
	}
	if rest, below := strings.CutSuffix(name, "."+zone); below {
		return t.below(rest, zone, t.visible(asker, server))
	}
	address, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(name))
	if err != nil {
		return answer{}
	}
	if address = t.first(address); !t.Range.Contains(address) {
		return answer{}
	}
	found := answer{ours: true, zone: zone}
	for _, p := range t.visible(asker, server).pods {
		if p.Address == address {
			found.exists, found.name = true, fmt.Sprintf("pod%d.%s.%s.%s", p.Index, p.Name, p.User, zone)
		}
	}
	return found
}

// second returns the IPv6 address of the pod with this IPv4 address, or none if pods have none.
func (t *table) second(address netip.Addr) netip.Addr {
	if !t.IPv6.IsValid() {
		return netip.Addr{}
	}
	all, last := t.IPv6.Addr().As16(), address.As4()
	copy(all[len(all)-len(last):], last[:])
	return netip.AddrFrom16(all)
}

// first returns the IPv4 address of the pod with this address. An address that is not a pod's
// IPv6 address is returned as it is.
func (t *table) first(address netip.Addr) netip.Addr {
	if !t.IPv6.Contains(address) {
		return address
	}
	all := address.As16()
	return netip.AddrFrom4([4]byte(all[len(all)-4:]))
}

// view holds the pods that one asker sees.
type view struct {
	pods []nametable.Pod
	// own is the asker, if it is a pod.
	own *nametable.Pod
}

// visible returns the pods that an asker sees.
func (t *table) visible(asker, server netip.Addr) view {
	if asker == server {
		return view{pods: t.Pods}
	}
	v := view{}
	for i, p := range t.Pods {
		if p.Address == asker {
			v.own = &t.Pods[i]
		}
	}
	if v.own == nil {
		// The asker is a pod of a network without pods in this table.
		return v
	}
	for _, p := range t.Pods {
		if p.Network == v.own.Network {
			v.pods = append(v.pods, p)
		}
	}
	return v
}

// below looks up USER, JOB.USER, podN.JOB.USER, or a name below JOB.USER that the user has
// chosen or that pods of the job serve.
func (t *table) below(name, zone string, v view) answer {
	found := answer{ours: true, zone: zone}
	labels := strings.Split(name, ".")
	user := labels[len(labels)-1]
	labels = labels[:len(labels)-1]
	var chosen *nametable.Pod
	for i, p := range v.pods {
		if p.User != user {
			continue
		}
		if len(labels) == 0 {
			found.exists = true
			return found
		}
		if hasLabel(p, labels[len(labels)-1]) && (chosen == nil || v.prefers(p, *chosen, labels[len(labels)-1])) {
			chosen = &v.pods[i]
		}
	}
	if chosen == nil {
		return found
	}
	given := strings.Join(labels[:len(labels)-1], ".")
	of := func(p nametable.Pod) bool {
		return p.UID == chosen.UID && p.Number == chosen.Number && p.Name == chosen.Name
	}
	all := len(labels) == 1 || slices.ContainsFunc(v.pods, func(p nametable.Pod) bool { return of(p) && slices.Contains(p.Names, given) })
	for _, p := range v.pods {
		if !of(p) {
			continue
		}
		if all || slices.Contains(p.Served, given) || len(labels) == 2 && labels[0] == "pod"+strconv.Itoa(p.Index) {
			found.exists, found.addresses = true, append(found.addresses, p.Address)
		}
	}
	return found
}

// hasLabel reports whether a label selects the job of a pod: by the job's name, or by its
// number, which no other job has.
func hasLabel(p nametable.Pod, label string) bool { return p.Name == label || hasNumber(p, label) }

func hasNumber(p nametable.Pod, label string) bool {
	return p.Number != 0 && label == strconv.FormatUint(uint64(p.Number), 10)
}

// prefers reports whether a label means the job of a instead of the job of b: the asker's own
// job comes first, then the job with that number, then the newest.
func (v view) prefers(a, b nametable.Pod, label string) bool {
	own := func(p nametable.Pod) bool { return v.own != nil && v.own.Number == p.Number && v.own.Name == p.Name }
	for _, better := range []func(nametable.Pod) bool{own, func(p nametable.Pod) bool { return hasNumber(p, label) }} {
		if better(a) != better(b) {
			return better(a)
		}
	}
	return a.After > b.After
}

// file reads the table from a file that berthd replaces as a whole.
type file struct {
	path string

	mu sync.Mutex
	// opened stays open. Otherwise some file systems would give its inode to a later table, and
	// modification times are only as exact as the kernel's clock.
	opened *os.File
	info   os.FileInfo
	read   *table
}

// table reads the file again if it was replaced since the last call.
func (f *file) table() (*table, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	opened, err := os.Open(f.path)
	if errors.Is(err, os.ErrNotExist) && f.read != nil {
		// The server is about to end, but queries until then must be answered.
		return f.read, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open names of pods: %w", err)
	}
	info, err := opened.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at names of pods: %w", err), opened.Close())
	}
	if f.read != nil && os.SameFile(info, f.info) {
		return f.read, opened.Close()
	}
	read := &table{}
	err = json.NewDecoder(opened).Decode(read)
	if err == nil {
		err = read.validate()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read names of pods: %w", err), opened.Close())
	}
	if f.opened != nil {
		// The file was only read, so Close loses nothing.
		_ = f.opened.Close()
	}
	f.opened, f.info, f.read = opened, info, read
	return read, nil
}
