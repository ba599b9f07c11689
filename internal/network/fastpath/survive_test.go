package fastpath

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil"
)

// TestConnectSucceedsWithDeadSwitch kills the Switches of both hosts in turn while
// connections are made, each with a successor.
func TestConnectSucceedsWithDeadSwitch(t *testing.T) {
	l, _, _ := pair(t, labConfig{})
	const each = 500
	var serving, asking []*app
	for i, mode := range []string{"", "nonblock epoll edge", "poll", "v6 nonblock epoll", "v6 v6only"} {
		server := l.hosts[1].addPod(30 + i)
		to := server.at(5000)
		if strings.Contains(mode, "v6only") {
			to = server.at6(5000)
		}
		serving = append(serving, server.serve("serve", append([]string{"5000", "quiet", fmt.Sprintf("n=%d", each)}, strings.Fields(mode)...)...))
		asking = append(asking, l.hosts[0].addPod(30+i).start("many", to, fmt.Sprint(each)))
	}
	for round := range 8 {
		h := l.hosts[round%2]
		h.kill()
		h.startSwitch()
	}
	for i := range asking {
		out, err := asking[i].result()
		if err != nil {
			t.Error(err)
			serving[i].kill()
			continue
		}
		serving[i].wait()
		if testing.Verbose() {
			t.Logf("server %d: %s", i, out[strings.LastIndex(out, "\n")+1:])
		}
	}
}

func TestEstablishedConnectionOutlivesItsSwitches(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	serving := server.serve("serve", "5000")
	asking := client.serve("slow", server.at(5000))
	waiting := server.serve("serve", "5001") // in a blocking accept
	for _, h := range l.hosts {
		h.kill()
		h.startSwitch()
	}
	expect(t, asking.wait(), client.address, server.address, "switched")
	expect(t, serving.wait(), server.address, client.address, "switched")
	expect(t, client.run("ask", server.at(5001)), client.address, server.address, "switched")
	waiting.wait()
}

func TestKilledDescriptorHolderIsReplaced(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	serving := server.serve("serve", "5000", "n=2")
	client.run("ask", server.at(5000))
	for _, h := range l.hosts {
		old := h.fdHolder(t)
		process, err := os.FindProcess(int(old))
		if err != nil {
			t.Fatal(err)
		}
		process.Kill()
		testutil.Eventually(t, "another descriptor holder", func() bool { return h.fdHolder(t) != old })
		h.kill()
		h.startSwitch()
	}
	expect(t, client.run("ask", server.at(5000)), client.address, server.address, "switched")
	serving.wait()
}

// fdHolder returns the process that holds the descriptors of a host's Switch.
func (h *host) fdHolder(t *testing.T) int32 {
	t.Helper()
	for _, r := range h.records(t) {
		if r.kind == kindFDHolder {
			return r.fd
		}
	}
	t.Fatal("no descriptor holder")
	return 0
}

func (h *host) records(t *testing.T) []*record {
	t.Helper()
	s, err := openState(h.state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s.inherited()
}

func (h *host) descriptors(t *testing.T) int {
	t.Helper()
	all, err := listDescriptors(h.process.Process.Pid, maxDescriptors)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestThousandsOfConnectsLeakNothing(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	const n = 2*minKnown + 1000
	serving := server.serve("serve", "5000", "quiet", "nonblock", "epoll", fmt.Sprintf("n=%d", n))
	asking := client.start("many", server.at(5000), fmt.Sprint(n))
	out := asking.wait()
	serving.wait()
	if want := fmt.Sprintf("switched %d", n); !strings.HasSuffix(out, want) {
		t.Errorf("%q, not %q", out[strings.LastIndex(out, "\n")+1:], want)
	}
	for i, h := range l.hosts {
		// Its own, sockets of a pod, and connections for later on both sides.
		most := 30 + 64 + maxIdle
		testutil.Eventually(t, "descriptors are closed", func() bool { return h.descriptors(t) <= most })
		if records := len(h.records(t)); records > 2*minKnown+100 {
			t.Errorf("host %d has %d records", i, records)
		}
	}
	// Once the pods are gone, the Switch keeps nothing for them.
	for i, h := range l.hosts {
		testutil.Eventually(t, "containers are forgotten", func() bool {
			for _, r := range h.records(t) {
				if r.kind == kindContainer || r.kind == kindCall || r.kind == kindParked {
					return false
				}
			}
			return true
		})
		if testing.Verbose() {
			t.Logf("host %d: %d descriptors, %d records", i, h.descriptors(t), len(h.records(t)))
		}
	}
}

// TestThousandsOfOpenConnectionsLeakNothing has 10,000 at once, of programs
// with few enough descriptors.
func TestThousandsOfOpenConnectionsLeakNothing(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	const programs, each = 40, 250
	most := 30 + 64 + maxIdle + programs*4 // the Switch's own, besides its connections
	var all, holding []*app
	for i := range programs {
		all = append(all, server.serve("keep", fmt.Sprint(5000+i), fmt.Sprint(each)))
		holding = append(holding, client.start("hold", server.at(5000+i), fmt.Sprint(each)))
	}
	for _, program := range holding {
		if line := program.line(); line != "ready" {
			t.Fatalf("%v prints %q", program.all, line)
		}
	}
	all = append(all, holding...)
	for i, h := range l.hosts {
		testutil.Eventually(t, "what was needed for a moment is closed", func() bool { return h.descriptors(t) <= most })
		switched := 0
		for _, r := range h.records(t) {
			if r.kind == kindSwitched {
				switched++
			}
		}
		if switched < programs*each {
			t.Errorf("host %d knows %d connections of %d: %v", i, switched, programs*each, h.counters())
		}
	}
	for _, program := range all {
		program.kill()
	}
	for _, h := range l.hosts {
		testutil.Eventually(t, "connections are forgotten", func() bool { return len(h.records(t)) < 2*minKnown })
		testutil.Eventually(t, "descriptors are closed", func() bool { return h.descriptors(t) <= most })
	}
}

// TestHostPortsRunOut has a client whose host has few ports, each of
// which is taken for a minute after a connection.
func TestHostPortsRunOut(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	l.hosts[0].ns.try(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40001 40200"), 0)
	})
	ask := func(n int) string {
		serving := server.serve("serve", "5000", "quiet", fmt.Sprintf("n=%d", n))
		out := client.run("many", server.at(5000), fmt.Sprint(n))
		serving.wait()
		return out[strings.LastIndex(out, "\n")+1:]
	}
	// More than there are ports, but not for two listeners.
	if got := ask(250); got != "switched 250" {
		t.Errorf("%s of 250", got)
	}
	// Further connections stay on the overlay.
	if got := ask(300); got == "switched 300" {
		t.Errorf("%s of 300 more", got)
	}
}
