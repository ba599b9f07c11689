package fastpath

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

func TestOnlyManyConnectionsAreJudged(t *testing.T) {
	const busy = 10
	to, start := netip.MustParseAddrPort("10.42.1.20:80"), time.Now()
	for _, test := range []struct {
		name   string
		every  time.Duration
		judged bool
	}{
		{"as many as are asked for", habitPeriod / busy, true},
		{"more", habitPeriod / busy / 5, true},
		{"fewer", habitPeriod / busy * 2, false},
		{"hardly any", 3 * habitPeriod, false},
	} {
		h := habits{of: map[netip.AddrPort]*habit{}}
		judged := false
		for i := range 5 * busy * 5 {
			samples := h.note(to, record{cookie: uint64(i)}, busy, start.Add(time.Duration(i)*test.every))
			if len(samples) > numSamples {
				t.Errorf("%s: %d samples", test.name, len(samples))
			}
			judged = judged || len(samples) > 0
		}
		if judged != test.judged {
			t.Errorf("%s: judged: %v", test.name, judged)
		}
		h.leave(to, start.Add(habitFor))
		if !h.short(to, start) || h.short(to, start.Add(habitFor)) || h.short(netip.MustParseAddrPort("10.42.1.20:81"), start) {
			t.Errorf("%s: another port, or at another time than what was learnt", test.name)
		}
	}
	h := habits{of: map[netip.AddrPort]*habit{}}
	for i := range 10 * mostHabits {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)}), 80)
		h.note(to, record{}, busy, start.Add(time.Duration(i)*time.Second/100))
	}
	if len(h.of) > mostHabits {
		t.Errorf("%d ports are remembered", len(h.of))
	}
}

func TestShortConnectionsStayOnOverlay(t *testing.T) {
	_, client, server := pair(t, labConfig{busy: 50})
	serving := server.serve("serve", "5000", "quiet", "n=1000000")
	// How many it takes is the machine's.
	testutil.Eventually(t, "a port is left to the overlay", func() bool {
		client.run("many", server.at(5000), "1000")
		return client.host.counters()[countNames[countShort]] > 0 &&
			strings.HasSuffix(client.run("many", server.at(5000), "100"), "switched 0")
	})
	other := server.serve("serve", "5001")
	expect(t, client.run("ask", server.at(5001)), client.address, server.address, "switched")
	other.wait()
	serving.kill()
}
