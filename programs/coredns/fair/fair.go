// Package fair shares a CoreDNS between its clients, which are the pods of a node.
// It has two plugins:
//
//   - turns comes before the plugins that take processor time. It answers the
//     clients in rotation, so a pod that floods the server waits for itself.
//   - share comes before forward. It bounds the queries of each client that wait
//     for another server, which may take seconds.
//
// A query above a bound is dropped, as if the network had lost it: the client
// repeats it after a pause. With an answer, such as REFUSED, it would send the next
// one at once. Neither plugin reads names or answers.
package fair

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"berth.dev/berth/programs/coredns/share"
)

// Directives of the Corefile. turnsName has no argument; shareName has the number of
// queries of all clients.
const turnsName, shareName = "turns", "share"

// waitingMost bounds the queries of one client that wait for their turn.
const waitingMost = 1024

// Register adds the plugins. notice is called once for each client that exceeds a
// bound.
func Register(notice func(text string)) {
	insert(turnsName, "loadbalance")
	insert(shareName, "forward")
	said := &once{notice: notice}
	plugin.Register(turnsName, func(c *caddy.Controller) error {
		processors := runtime.GOMAXPROCS(0)
		// Keep one for the goroutine that reads the socket. Otherwise it is only polled
		// when no query is ready, or every 10 ms.
		runtime.GOMAXPROCS(processors + 1)
		t := newTurns(processors, waitingMost)
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler { return &turnsHandler{next, t, said} })
		return nil
	})
	plugin.Register(shareName, func(c *caddy.Controller) error {
		limit, err := argument(c)
		if err != nil {
			return plugin.Error(shareName, err)
		}
		s := share.New(limit)
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler { return &shareHandler{next, s, said} })
		return nil
	})
}

// insert puts a directive before another one. The order of directives is the order
// of execution.
func insert(name, before string) {
	at := slices.Index(dnsserver.Directives, before)
	dnsserver.Directives = slices.Insert(dnsserver.Directives, at, name)
}

func argument(c *caddy.Controller) (int, error) {
	if !c.Next() || !c.NextArg() {
		return 0, c.ArgErr()
	}
	limit, err := strconv.Atoi(c.Val())
	if err != nil || limit < 1 {
		return 0, fmt.Errorf("%q is not a positive number", c.Val())
	}
	return limit, nil
}

// turnKey is the context key of a *handled.
type turnKey struct{}

// handled is a query that has had a turn.
type handled struct {
	give    func() // ends the turn; may be called twice
	dropped bool   // by share
}

type turnsHandler struct {
	next  plugin.Handler
	turns *turns
	said  *once
}

func (h *turnsHandler) Name() string { return turnsName }

func (h *turnsHandler) ServeDNS(ctx context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
	if _, has := ctx.Value(turnKey{}).(*handled); has {
		// For the target of an ExternalName Service, the kubernetes plugin sends a query
		// through all plugins, and waits for its answer. If such queries took turns as
		// well, they would wait for each other.
		return plugin.NextOrFailure(turnsName, h.next, ctx, w, query)
	}
	client := clientOf(w, query)
	own, ok := h.turns.take(client)
	if !ok {
		h.said.about(client, fmt.Sprintf("dropped DNS queries of pod %v: %d of them wait for an answer", client, waitingMost))
		return dns.RcodeSuccess, nil // which makes CoreDNS send nothing
	}
	t := &handled{give: sync.OnceFunc(func() { h.turns.give(own) })}
	defer t.give()
	code, err := plugin.NextOrFailure(turnsName, h.next, context.WithValue(ctx, turnKey{}, t), &answer{w, t}, query)
	if t.dropped {
		return dns.RcodeSuccess, nil
	}
	return code, err
}

// answer sends the answer to a query that has a turn.
type answer struct {
	dns.ResponseWriter
	turn *handled
}

// WriteMsg sends nothing if the query was dropped. If only the query for the target of an
// ExternalName Service was, the kubernetes plugin answers that the name has no addresses,
// which the client would not ask again.
func (a *answer) WriteMsg(m *dns.Msg) error {
	if a.turn.dropped {
		return nil
	}
	a.sending()
	return a.ResponseWriter.WriteMsg(m)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.turn.dropped {
		return len(b), nil
	}
	a.sending()
	return a.ResponseWriter.Write(b)
}

// sending ends the turn before an answer over TCP. A client that does not read it makes
// the write wait without a limit: miekg/dns v1.1.73 ignores Server.WriteTimeout.
func (a *answer) sending() {
	if _, tcp := a.RemoteAddr().(*net.TCPAddr); tcp {
		a.turn.give()
	}
}

type shareHandler struct {
	next   plugin.Handler
	shares *share.Places
	said   *once
}

func (h *shareHandler) Name() string { return shareName }

func (h *shareHandler) ServeDNS(ctx context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
	t, has := ctx.Value(turnKey{}).(*handled)
	if has {
		t.give() // to wait for another server takes no processor time
	}
	client := clientOf(w, query)
	if !h.shares.Take(client) {
		if has {
			t.dropped = true
		}
		h.said.about(client, fmt.Sprintf("dropped DNS queries of pod %v: too many of them wait for the host's name servers", client))
		return dns.RcodeSuccess, nil
	}
	defer h.shares.Give(client)
	return plugin.NextOrFailure(shareName, h.next, ctx, w, query)
}

func clientOf(w dns.ResponseWriter, query *dns.Msg) netip.Addr {
	state := request.Request{W: w, Req: query}
	client, _ := netip.ParseAddr(state.IP()) // of a socket, so it is one
	return client.Unmap()
}

// once passes on the first text about each client.
type once struct {
	notice func(text string)

	mu   sync.Mutex
	seen map[netip.Addr]bool
}

func (o *once) about(client netip.Addr, text string) {
	o.mu.Lock()
	first := !o.seen[client]
	if o.seen == nil {
		o.seen = make(map[netip.Addr]bool)
	}
	o.seen[client] = true
	o.mu.Unlock()
	if first {
		o.notice(text)
	}
}
