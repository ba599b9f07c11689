package egress

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A pod that opens more flows than there is room for ends only its own flows, although
// another pod's flows have been idle longer. The log names it, once.
func TestManyFlowsEndNoFlowOfAnotherPod(t *testing.T) {
	var log strings.Builder
	e := &engine{Config: Default()}
	e.Flows, e.Counters = 8, new(Counters)
	e.Log = slog.New(slog.NewTextHandler(&log, nil))
	table := newFlowTable(e)
	quiet, greedy := netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("10.42.0.3")
	open := func(pod netip.Addr, port uint16) {
		t.Helper()
		key := flowKey{header.UDPProtocolNumber, netip.AddrPortFrom(pod, port), netip.MustParseAddrPort("127.0.0.1:9")}
		if _, err := table.find(key, func(f *flow) (err error) {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(f.key.remote))
			if err != nil {
				return err
			}
			f.conn = conn
			f.raw, err = conn.SyscallConn()
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	open(quiet, 1)
	open(quiet, 2)
	for port := range uint16(100) {
		open(greedy, port)
	}
	if got := fmt.Sprint(table.ofPod); got != "map[10.42.0.2:2 10.42.0.3:6]" {
		t.Errorf("flows of the pods: %s", got)
	}
	if ended := e.Counters.Stats().Overflowed; ended != 94 {
		t.Errorf("%d flows were ended, want 94", ended)
	}
	if n := strings.Count(log.String(), "most of them pod 10.42.0.3"); n != 1 {
		t.Errorf("the log names the pod %d times, want once: %s", n, &log)
	}
	table.close()
	if len(table.flows)+len(table.ofPod) != 0 {
		t.Errorf("%d flows are left, of %d pods", len(table.flows), len(table.ofPod))
	}
}
