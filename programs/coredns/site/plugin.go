package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// pluginName is the directive of the Corefile: names TABLE LIFE.
const pluginName = "names"

// ttl of answers, in seconds: a job's names disappear with the job.
const ttl = 5

// queryTimeout bounds the time for pending queries after the file of life was removed.
const queryTimeout = 5 * time.Second

// names answers for the pods of the site network.
type names struct {
	next plugin.Handler
	file *file
	life *life
}

func setup(c *caddy.Controller) error {
	table, until, err := files(c)
	if err != nil {
		return err
	}
	f, l := &file{path: table}, &life{path: until}
	if _, err := f.table(); err != nil {
		return plugin.Error(pluginName, err)
	}
	go func() {
		l.over()
		// Close the sockets first. At exit the kernel frees the memory of a program before it
		// closes its sockets. A query that arrives in these milliseconds is lost, and the client
		// sends it again only after five seconds.
		_ = caddy.Stop()
		os.Exit(0)
	}()
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler { return &names{next: next, file: f, life: l} })
	return nil
}

// files returns the arguments of the directive: the table, and the file that bounds the
// life of the server. An older berthd names only the table, which then bounds the life,
// too. It may start this program while a newer berthd is installed and does not run yet.
func files(c *caddy.Controller) (table, until string, err error) {
	if !c.Next() || !c.NextArg() {
		return "", "", c.ArgErr()
	}
	table = c.Val()
	until = table
	if c.NextArg() {
		until = c.Val()
	}
	return table, until, nil
}

// life ends the program when a file is removed. A newer berthd, which is not the
// parent of this program, can remove it, too.
type life struct {
	path string
	// inHand counts queries without an answer. The kernel gives queries to this server
	// until it ends, even while its successor already runs.
	inHand atomic.Int64
}

// over returns when the file is removed and no query is pending, or after queryTimeout.
func (l *life) over() {
	for range time.Tick(time.Second / 2) {
		if _, err := os.Stat(l.path); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	for deadline := time.Now().Add(queryTimeout); l.inHand.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// Name returns the name of the plugin.
func (*names) Name() string { return pluginName }

// ServeDNS answers for the domain of the cluster and for the addresses of pods,
// and passes on all else.
func (n *names) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	n.life.inHand.Add(1)
	defer n.life.inHand.Add(-1)
	state := request.Request{W: w, Req: r}
	known, err := n.file.table()
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	asker, err := netip.ParseAddr(state.IP())
	if err != nil {
		return dns.RcodeServerFailure, fmt.Errorf("read the asker's address: %w", err)
	}
	server, err := netip.ParseAddr(state.LocalIP())
	if err != nil {
		return dns.RcodeServerFailure, fmt.Errorf("read the server's address: %w", err)
	}
	if !known.serves(asker.Unmap(), server.Unmap()) {
		return dns.RcodeRefused, nil
	}
	found := known.find(state.Name(), asker.Unmap(), server.Unmap())
	if !found.ours {
		return plugin.NextOrFailure(n.Name(), n.next, ctx, w, r)
	}
	answer := new(dns.Msg)
	answer.SetReply(r)
	answer.Authoritative = true
	header := dns.RR_Header{Name: state.QName(), Rrtype: state.QType(), Class: dns.ClassINET, Ttl: ttl}
	switch state.QType() {
	case dns.TypeA:
		for _, address := range found.addresses {
			answer.Answer = append(answer.Answer, &dns.A{Hdr: header, A: address.AsSlice()})
		}
	case dns.TypeAAAA:
		for _, address := range found.addresses {
			if second := known.second(address); second.IsValid() {
				answer.Answer = append(answer.Answer, &dns.AAAA{Hdr: header, AAAA: second.AsSlice()})
			}
		}
	case dns.TypePTR:
		// A name that is too long cannot be sent.
		if _, ok := dns.IsDomainName(found.name); ok && found.name != "" {
			answer.Answer = []dns.RR{&dns.PTR{Hdr: header, Ptr: found.name}}
		}
	}
	if len(answer.Answer) == 0 {
		answer.Ns = []dns.RR{soa(found.zone)}
	}
	if !found.exists {
		answer.Rcode = dns.RcodeNameError
	}
	// An error means that the asker has gone away.
	_ = w.WriteMsg(answer)
	return dns.RcodeSuccess, nil
}

// soa returns the record that limits how long a negative answer may be cached.
func soa(zone string) dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1},
		Ns:  "ns." + zone, Mbox: authority(zone), Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: 1,
	}
}

// authority returns the mailbox in the SOA record of a zone, its longest name.
func authority(zone string) string { return "hostmaster." + zone }
