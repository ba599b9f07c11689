package egress

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"

	"berth.dev/berth/internal/network/share"
)

const dnsPort = 53

// Resolvers holds the host's settings for name resolution (resolv.conf(5)).
type Resolvers struct {
	// Servers are asked in this order.
	Servers []netip.AddrPort
	// Search lists the domains to append to a name with fewer than Ndots dots.
	Search []string
	Ndots  int
	// Timeout limits the wait for one server. All servers are asked Attempts times.
	Timeout  time.Duration
	Attempts int
}

// HostResolvers reads a file like /etc/resolv.conf. If it lists no server, the server is
// 127.0.0.1, as in the C library. It returns an error if the file cannot be read.
func HostResolvers(path string) (Resolvers, error) {
	config, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return Resolvers{}, fmt.Errorf("read the host's resolvers (file %s): %w", path, err)
	}
	resolvers := Resolvers{
		Search:   config.Search,
		Ndots:    config.Ndots,
		Timeout:  time.Duration(config.Timeout) * time.Second,
		Attempts: config.Attempts,
	}
	for _, server := range config.Servers {
		// The C library, too, skips servers that are not numeric addresses.
		if addr, err := netip.ParseAddr(server); err == nil {
			resolvers.Servers = append(resolvers.Servers, netip.AddrPortFrom(addr, dnsPort))
		}
	}
	if len(resolvers.Servers) == 0 {
		resolvers.Servers = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsPort)}
	}
	return resolvers, nil
}

// resolver keeps the host's current Resolvers.
type resolver struct {
	path string
	// shares bounds the queries under way, of each pod and of all.
	shares *share.Places

	mu      sync.Mutex
	checked time.Time
	seen    os.FileInfo
	current Resolvers
	// preferred is the last server that answered after an earlier one in the list had not.
	// It comes first until the time in until, so that a dead server does not delay every
	// query by a timeout.
	preferred netip.AddrPort
	until     time.Time
}

const (
	// recheck is the time between checks of resolv.conf, while there are queries.
	recheck = time.Second
	// prefer limits how long the preferred server comes first.
	prefer = 30 * time.Second
	// queries limits the number of queries at one time. Most come
	// from CoreDNS, which has fewer places and shares them among the pods.
	// Each takes a descriptor and, until its answer comes, some kilobytes.
	queries = 1024
	// maxTimeout limits Timeout: resolvers in pods give up after five seconds.
	maxTimeout = 2 * time.Second
	// maxAttempts limits Attempts, as the C library does (RES_MAXRETRY).
	maxAttempts = 5
	// maxWait limits Attempts so that a query ends after this time, or after all servers
	// were asked once. CoreDNS repeats a query after 2 s (forward), and each repetition
	// takes a place here.
	maxWait = 4 * time.Second
)

func newResolver(path string) *resolver {
	return &resolver{path: path, shares: share.New(queries)}
}

// servers returns the servers, sorted by preference.
func (r *resolver) servers() []netip.AddrPort { return r.read().Servers }

// read returns the content of resolv.conf, and reads the file again if it has changed. If
// the file has become unreadable, read returns its last content.
func (r *resolver) read() Resolvers {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.checked) >= recheck || r.seen == nil {
		r.checked = now
		info, err := os.Stat(r.path)
		if err == nil && (r.seen == nil || !os.SameFile(info, r.seen) || !info.ModTime().Equal(r.seen.ModTime()) || info.Size() != r.seen.Size()) {
			if read, err := HostResolvers(r.path); err == nil {
				r.current, r.seen, r.until = read, info, time.Time{}
			}
		}
	}
	result := r.current
	result.Timeout = min(max(result.Timeout, time.Second), maxTimeout)
	rounds := maxWait / (result.Timeout * time.Duration(max(len(result.Servers), 1)))
	result.Attempts = min(result.Attempts, maxAttempts, max(int(rounds), 1))
	if now.Before(r.until) {
		servers := []netip.AddrPort{r.preferred}
		for _, server := range result.Servers {
			if server != r.preferred {
				servers = append(servers, server)
			}
		}
		result.Servers = servers
	}
	return result
}

// answered remembers a server that answered while one before it did not.
func (r *resolver) answered(server netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.preferred, r.until = server, time.Now().Add(prefer)
}
