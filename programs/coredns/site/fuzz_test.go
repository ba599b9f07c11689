package main

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"berth.dev/berth/programs/coredns/fuzzbound"
)

// asking is a query's way back: from an asker, and with the answer.
type asking struct {
	test.ResponseWriter
	from   netip.Addr
	answer *dns.Msg
}

func (a *asking) RemoteAddr() net.Addr           { return &net.UDPAddr{IP: a.from.AsSlice(), Port: 4711} }
func (a *asking) LocalAddr() net.Addr            { return &net.UDPAddr{IP: server.AsSlice(), Port: 53} }
func (a *asking) WriteMsg(answer *dns.Msg) error { a.answer = answer; return nil }

// FuzzQuery sends any query, as it comes from the network, from a pod or from
// the server's own host, with a table that berthd has written or another program.
func FuzzQuery(f *testing.F) {
	for _, name := range []string{"db.alice.alps.", "pod1.41.alice.alps.", "web.default.db.alice.alps.", "2.0.1.10.in-addr.arpa.", "alps.", "."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR, dns.TypeSOA} {
			packed, err := new(dns.Msg).SetQuestion(name, kind).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(example, packed, []byte{10, 1, 0, 2})
		}
	}
	question, err := new(dns.Msg).SetQuestion("a.b.c.", dns.TypeAAAA).Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"cluster":"c","range":"10.0.0.0/8","ipv6":"fd42::/96","pods":[{"network":1,"user":"b","name":"a"}]}`, question, server.AsSlice())
	f.Add(`{"cluster":"c","range":"fd42::/96","ipv6":"fd42::/96","pods":[{"address":"fd42::1","user":"b","name":"a"}]}`, question, netip.MustParseAddr("fd42::1").AsSlice())
	path := filepath.Join(f.TempDir(), "names")
	f.Fuzz(func(t *testing.T, written string, query, asker []byte) {
		fuzzbound.Watch(t)
		from, ok := netip.AddrFromSlice(asker)
		message := new(dns.Msg)
		if err := message.Unpack(query); err != nil || !ok || len(message.Question) == 0 {
			return // CoreDNS answers without the plugin
		}
		if err := os.WriteFile(path, []byte(written), 0o600); err != nil {
			t.Fatal(err)
		}
		plugin := &names{next: test.NextHandler(dns.RcodeRefused, nil), file: &file{path: path}, life: &life{}}
		w := &asking{from: from}
		_, err := plugin.ServeDNS(t.Context(), w, message)
		if plugin.file.opened != nil {
			plugin.file.opened.Close()
		}
		if err != nil || w.answer == nil {
			return
		}
		if _, err := w.answer.Pack(); err != nil {
			t.Errorf("the answer %v cannot be sent: %v", w.answer, err)
		}
	})
}
